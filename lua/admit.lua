-- The short way, for checks that are admitted, which is what nearly all of them are: what a file of each algorithm says in several
-- functions, settled and charged in one. Pure: no redis.call.
--
-- Redis runs the whole text of a script on every call, and what costs there are tables, functions and whatever they share, not
-- arithmetic. So all that is the same for every counter is worked out once, nothing is made for a single check, and whoever
-- does not fit here is left to the long way.
--
-- Each function reads the rates of a quota, which begin at `at` in the arguments, and makes what admits to a counter of it at this
-- moment. That is given the value of the counter (false if there is none, an error if it is no string: that has no length), now and
-- hits. It returns the value to write and when it is idle; false instead of a value if nothing changes; and nothing where the short
-- way does not apply: an unusual value, a clock that is behind, no room.

local unpack_all, unpack, pack = unpack, struct.unpack, struct.pack

local function admit_fixed_window(now_us, args, at)
  local period_us, capacity = unpack('<I7I4', args, at)
  local from_us = now_us - now_us % period_us
  local to_us = from_us + period_us
  return function(value, now_us, hits)
    local used = hits
    if value then
      if #value ~= 12 then
        return nil
      end
      local head, at_us, before = unpack('<BI7I4', value)
      if head ~= 16 or at_us > now_us then
        return nil
      elseif at_us >= from_us then
        used = before + hits
      end
    end
    if used > capacity then
      return nil
    elseif hits == 0 then
      return false
    end
    return pack('<BI7I4', 16, now_us, used), to_us
  end
end

local function admit_sliding_window(now_us, args, at)
  local period_us, capacity = unpack('<I7I4', args, at)
  local parts = 1000000
  local part_us, into_us = period_us / parts, now_us % period_us
  local from_us = now_us - into_us
  local idle_at_us = from_us + 2 * period_us
  local covered_parts = parts - (into_us - into_us % part_us) / part_us
  return function(value, now_us, hits)
    local used, previous = 0, 0
    if value then
      local size, head, at_us = #value, nil, nil
      if size == 12 then
        head, at_us, used = unpack('<BI7I4', value)
      elseif size == 16 then
        head, at_us, used, previous = unpack('<BI7I4I4', value)
        head = head - 1
      end
      if head ~= 16 or at_us > now_us then
        return nil
      elseif at_us < from_us then
        previous, used = at_us >= from_us - period_us and used or 0, 0
      end
    end
    local before = used
    if previous > 0 then
      local covered = previous * covered_parts
      before = used + (covered + -covered % parts) / parts
    end
    if before + hits > capacity then
      return nil
    elseif hits == 0 then
      return false
    elseif previous > 0 then
      return pack('<BI7I4I4', 17, now_us, used + hits, previous), idle_at_us
    end
    return pack('<BI7I4', 16, now_us, used + hits), idle_at_us
  end
end

-- What has leaked is never rounded below a level, because every level is exact; and hits fit if what they weigh does, because a
-- bucket holds a whole number of them. What is not exact is more than a bucket holds.
local function admit_bucket(now_us, args, at)
  local capacity, tick_us, weight, leak, level_max = unpack('<I4I7I7I4I7', args, at)
  local holds, tick_at_us = capacity * weight, now_us - now_us % tick_us
  return function(value, now_us, hits)
    local level = 0
    if value then
      local size, head, at_us = #value, nil, nil
      if size == 12 then
        head, at_us, level = unpack('<BI7I4', value)
      elseif size == 15 then
        head, at_us, level = unpack('<BI7I7', value)
        head = level < 9007199254740992 and head - 4
      end
      if head ~= 16 or at_us > now_us then
        return nil
      end
      if level > level_max then
        level = level_max
      end
      -- Nearly all have ticks of 1 us.
      local ticks = now_us - at_us
      if tick_us > 1 then
        ticks = (tick_at_us - at_us + at_us % tick_us) / tick_us
      end
      level = level - ticks * leak
      if level < 0 then
        level = 0
      end
    end
    level = level + hits * weight
    if level > holds then
      return nil
    elseif hits == 0 then
      return false
    end
    local idle_at_us = tick_at_us + (level + -level % leak) / leak * tick_us
    if level > 4294967295 then
      return pack('<BI7I7', 20, now_us, level), idle_at_us
    end
    return pack('<BI7I4', 16, now_us, level), idle_at_us
  end
end

-- Two or three windows. In place of a third that is missing stands one that has room for what is found there: where the value ended.
local function admit_fixed_windows(now_us, args, at, count)
  local period_1_us, capacity_1, at_2 = unpack('<I7I4', args, at)
  local period_2_us, capacity_2, at_3 = unpack('<I7I4', args, at_2)
  local period_3_us, capacity_3, format, expected = 1, 9007199254740992, '<BI7I4I4', 16
  if count == 3 then
    period_3_us, capacity_3 = unpack('<I7I4', args, at_3)
    format, expected = '<BI7I4I4I4', 20
  end
  local from_1_us, from_2_us = now_us - now_us % period_1_us, now_us - now_us % period_2_us
  local from_3_us = now_us - now_us % period_3_us
  local idle_at_us = math.max(from_1_us + period_1_us, from_2_us + period_2_us, from_3_us + period_3_us)
  return function(value, now_us, hits)
    local used_1, used_2, used_3 = hits, hits, hits
    if value then
      if #value ~= expected then
        return nil
      end
      local head, at_us, before_1, before_2, before_3 = unpack(format, value)
      if head ~= 16 or at_us > now_us then
        return nil
      end
      used_1 = at_us < from_1_us and hits or before_1 + hits
      used_2 = at_us < from_2_us and hits or before_2 + hits
      used_3 = at_us < from_3_us and hits or before_3 + hits
    end
    if used_1 > capacity_1 or used_2 > capacity_2 or used_3 > capacity_3 then
      return nil
    elseif hits == 0 then
      return false
    end
    return pack(format, 16, now_us, used_1, used_2, used_3), idle_at_us
  end
end

-- Two or three buckets with ticks of 1 us, as admit_bucket says for one; none if one has longer ticks. In place of a third that is
-- missing stands one that nothing is in.
local function admit_buckets(now_us, args, at, count)
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
  return function(value, now_us, hits)
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

