-- The short way, for checks that are admitted, which is what nearly all of them are: what a file of each algorithm says in several
-- functions, settled and charged in one. Pure: no redis.call.
--
-- Redis runs the whole text of a script on every call, and what costs there are tables, functions and whatever they share, not
-- arithmetic. So all that is the same for every counter is worked out once, nothing is made for a single check, and whoever
-- does not fit here is left to the long way.

local unpack, pack = struct.unpack, struct.pack

-- Each makes the admission by a rate at this moment: given a cell of a time that is not after now, and hits, it returns used,
-- idle_at_us and, of windows that slide, previous as they are then, or nothing if there is no room.

local function admit_fixed_window(now_us, period_us, capacity)
  local from_us = now_us - now_us % period_us
  local to_us = from_us + period_us
  return function(at_us, used, hits)
    used = at_us < from_us and hits or used + hits
    if used <= capacity then
      return used, to_us
    end
  end
end

local function admit_sliding_window(now_us, period_us, capacity)
  local parts, count_max = 1000000, 4294967296
  local part_us, into_us = period_us / parts, now_us % period_us
  local from_us, to_us = now_us - into_us, now_us - into_us + period_us
  local covered_parts = parts - (into_us - into_us % part_us) / part_us
  return function(at_us, used, hits, previous)
    if at_us < from_us then
      previous = at_us >= from_us - period_us and used or 0
      previous, used = previous < count_max and previous or count_max, 0
    end
    local before = used
    if previous > 0 then
      local covered = previous * covered_parts
      before = used + (covered + -covered % parts) / parts
    end
    if before + hits <= capacity then
      return used + hits, to_us + period_us, previous
    end
  end
end

-- What has leaked is never rounded below a level, because every level is exact; and hits fit if what they weigh does, because a
-- bucket holds a whole number of them. What is not exact is more than a bucket holds.
local function admit_bucket(now_us, capacity, tick_us, weight, leak, level_max)
  local holds = capacity * weight
  -- As below, for the tick that nearly all have.
  if tick_us == 1 then
    return function(at_us, level, hits)
      if level > 0 then
        if level > level_max then
          level = level_max
        end
        level = level - (now_us - at_us) * leak
        if level < 0 then
          level = 0
        end
      end
      level = level + hits * weight
      if level <= holds then
        return level, now_us + (level + -level % leak) / leak
      end
    end
  end
  local tick_at_us = now_us - now_us % tick_us
  return function(at_us, level, hits)
    if level > 0 then
      if level > level_max then
        level = level_max
      end
      level = level - (tick_at_us - at_us + at_us % tick_us) / tick_us * leak
      if level < 0 then
        level = 0
      end
    end
    level = level + hits * weight
    if level <= holds then
      return level, tick_at_us + (level + -level % leak) / leak * tick_us
    end
  end
end

-- Admits hits to a counter of one rate. Returns the value to write and when it is idle; false instead of a value if nothing
-- changes. Returns nothing where the short way does not apply: an unusual value, a clock that is behind, no room.
local function admit_one(value, now_us, quota, hits)
  local at_us, used, previous = now_us, 0, 0
  if value then
    local length, head = #value, 0
    if length == 12 then
      head, at_us, used = unpack('<BI7I4', value)
    elseif length == 15 then
      head, at_us, used = unpack('<BI7I7', value)
      head = used < 9007199254740992 and head - 4 or 0
    elseif length == 16 then
      head, at_us, used, previous = unpack('<BI7I4I4', value)
      head = head - 1
    end
    if head ~= 16 or at_us > now_us then
      return nil
    end
  end
  local idle_at_us
  used, idle_at_us, previous = quota[1](at_us, used, hits, previous)
  if not used then
    return nil
  elseif hits == 0 then
    return false
  elseif previous and previous > 0 then
    if previous > 4294967295 then
      return nil
    end
    return pack('<BI7I4I4', 17, now_us, used, previous), idle_at_us
  elseif used > 4294967295 then
    return pack('<BI7I7', 20, now_us, used), idle_at_us
  end
  return pack('<BI7I4', 16, now_us, used), idle_at_us
end

-- The same for two or three rates of fixed windows, or of buckets of which one has longer ticks. Of two there is no third: what
-- stands in its place is not used.
local function admit_several(value, now_us, quota, hits)
  local admit_3, format, head = quota[3], '<BI7I4I4I4', 16
  if not value then
    value = '\16\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
  elseif #value == (admit_3 and 29 or 22) then
    format, head = admit_3 and '<BI7I7I7I7' or '<BI7I7I7', 20
  elseif #value ~= (admit_3 and 20 or 16) then
    return nil
  elseif not admit_3 then
    format = '<BI7I4I4'
  end
  local its_head, at_us, before_1, before_2, before_3 = unpack(format, value)
  -- A sum that is exact has no part that is not.
  if its_head ~= head or at_us > now_us or before_1 + before_2 + before_3 >= 9007199254740992 then
    return nil
  end
  local used_1, idle_at_us = quota[1](at_us, before_1, hits)
  if not used_1 then
    return nil
  end
  local used_2, its_idle_at_us = quota[2](at_us, before_2, hits)
  if not used_2 then
    return nil
  elseif its_idle_at_us > idle_at_us then
    idle_at_us = its_idle_at_us
  end
  local used_3 = 0
  if admit_3 then
    used_3, its_idle_at_us = admit_3(at_us, before_3, hits)
    if not used_3 then
      return nil
    elseif its_idle_at_us > idle_at_us then
      idle_at_us = its_idle_at_us
    end
  end
  if hits == 0 then
    return false
  end
  head = 16
  if used_1 > 4294967295 or used_2 > 4294967295 or used_3 > 4294967295 then
    head, format = 20, admit_3 and '<BI7I7I7I7' or '<BI7I7I7'
  else
    format = admit_3 and '<BI7I4I4I4' or '<BI7I4I4'
  end
  return pack(format, head, now_us, used_1, used_2, used_3), idle_at_us
end

-- The same for two or three buckets with ticks of 1 us, which nearly all have: as admit_bucket says for one, without a call for
-- each. Returns nothing if one has longer ticks. In place of a third that is missing stands one that nothing is in.
local function admit_buckets(args, at, count)
  local capacity_1, tick_1_us, weight_1, leak_1, max_1, at_2 = unpack('<I4I7I7I4I7', args, at)
  local capacity_2, tick_2_us, weight_2, leak_2, max_2, at_3 = unpack('<I4I7I7I4I7', args, at_2)
  local capacity_3, tick_3_us, weight_3, leak_3, max_3 = 0, 1, 0, 1, 0
  local narrow, narrow_size, wide, wide_size = '<BI7I4I4', 16, '<BI7I7I7', 22
  if count == 3 then
    capacity_3, tick_3_us, weight_3, leak_3, max_3 = unpack('<I4I7I7I4I7', args, at_3)
    narrow, narrow_size, wide, wide_size = '<BI7I4I4I4', 20, '<BI7I7I7I7', 29
  end
  if tick_1_us ~= 1 or tick_2_us ~= 1 or tick_3_us ~= 1 then
    return nil
  end
  local holds_1, holds_2, holds_3 = capacity_1 * weight_1, capacity_2 * weight_2, capacity_3 * weight_3
  return function(value, now_us, _, hits)
    local level_1, level_2, level_3 = 0, 0, 0
    if value then
      local size, head, expected, at_us = #value, nil, 16, nil
      if size == narrow_size then
        head, at_us, level_1, level_2, level_3 = unpack(narrow, value)
      elseif size == wide_size then
        expected = 20
        head, at_us, level_1, level_2, level_3 = unpack(wide, value)
      end
      -- A sum that is exact has no part that is not. Of two, the third is where the value ended.
      if head ~= expected or at_us > now_us or level_1 + level_2 + level_3 >= 9007199254740992 then
        return nil
      end
      local passed_us = now_us - at_us
      level_1 = (level_1 < max_1 and level_1 or max_1) - passed_us * leak_1
      level_2 = (level_2 < max_2 and level_2 or max_2) - passed_us * leak_2
      level_3 = (level_3 < max_3 and level_3 or max_3) - passed_us * leak_3
    end
    level_1 = (level_1 > 0 and level_1 or 0) + hits * weight_1
    level_2 = (level_2 > 0 and level_2 or 0) + hits * weight_2
    level_3 = (level_3 > 0 and level_3 or 0) + hits * weight_3
    if level_1 > holds_1 or level_2 > holds_2 or level_3 > holds_3 then
      return nil
    elseif hits == 0 then
      return false
    end
    local idle_us = (level_1 + -level_1 % leak_1) / leak_1
    local idle_2_us = (level_2 + -level_2 % leak_2) / leak_2
    local idle_3_us = (level_3 + -level_3 % leak_3) / leak_3
    if idle_2_us > idle_us then
      idle_us = idle_2_us
    end
    if idle_3_us > idle_us then
      idle_us = idle_3_us
    end
    if level_1 > 4294967295 or level_2 > 4294967295 or level_3 > 4294967295 then
      return pack(wide, 20, now_us, level_1, level_2, level_3), now_us + idle_us
    end
    return pack(narrow, 16, now_us, level_1, level_2, level_3), now_us + idle_us
  end
end

