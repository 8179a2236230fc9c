-- Decides the requests of a group, whatever their checks: by the short way if all of them have room, else by the long one. What it
-- needs of a store it is given: get(key), which returns a value, false or an error, and put(key, value, idle_at_us). What was
-- found is appended to the reply as the contract in decide.lua says.
--
-- Makes the three functions at its end, where they are needed: most requests have one check of one rate, for which decide.lua does
-- without.
local function any_group(now_us, args, quotas, admit_one, get, put, reply)
  local unpack, pack = struct.unpack, struct.pack
  local NARROW_MAX = 4294967295
  local EXACT_MAX = 9007199254740992
  local ABSENT = '\0'

  -- As admit_one of decide.lua, for two or three rates without previous windows.
  local function admit_several(value, quota, hits)
    local is_two = quota.count == 2
    local narrow = is_two and '<BI7I4I4' or '<BI7I4I4I4'
    local wide = is_two and '<BI7I7I7' or '<BI7I7I7I7'
    local at_us, used_1, used_2, used_3 = now_us, 0, 0, 0
    if value then
      local length, head = #value, 0
      if length == (is_two and 16 or 20) then
        head, at_us, used_1, used_2, used_3 = unpack(narrow, value)
      elseif length == (is_two and 22 or 29) then
        head, at_us, used_1, used_2, used_3 = unpack(wide, value)
        -- Of two rates there is no third: what stands there is where the value ends.
        local is_exact = used_1 < EXACT_MAX and used_2 < EXACT_MAX and used_3 < EXACT_MAX
        head = is_exact and head - 4 or 0
      end
      if head ~= 16 or at_us > now_us then
        return nil
      end
    end
    local previous, its_previous, idle_at_us, its_idle_at_us
    used_1, previous, idle_at_us = quota[1](at_us, used_1, 0, hits)
    if not used_1 then
      return nil
    end
    used_2, its_previous, its_idle_at_us = quota[2](at_us, used_2, 0, hits)
    if not used_2 then
      return nil
    end
    local most = used_1 > used_2 and used_1 or used_2
    previous = previous + its_previous
    idle_at_us = its_idle_at_us > idle_at_us and its_idle_at_us or idle_at_us
    if not is_two then
      used_3, its_previous, its_idle_at_us = quota[3](at_us, used_3, 0, hits)
      if not used_3 then
        return nil
      end
      most = used_3 > most and used_3 or most
      previous = previous + its_previous
      idle_at_us = its_idle_at_us > idle_at_us and its_idle_at_us or idle_at_us
    end
    if previous > 0 then
      return nil
    end
    if hits == 0 then
      return false
    elseif most > NARROW_MAX then
      return pack(wide, 20, now_us, used_1, used_2, used_3), idle_at_us
    end
    return pack(narrow, 16, now_us, used_1, used_2, used_3), idle_at_us
  end

  -- The checks of the requests at hand, and what is found and written for each.
  local slots, check_quotas, flags, hits, admits = {}, {}, {}, {}, {}
  local found, new_values, idle_at_us = {}, {}, {}
  local key_count, count, all_admit

  -- Reads what the requests of a group have in common. Returns where the next group begins.
  local function open(at)
    key_count, count, at = unpack('<I2I2', args, at)
    all_admit = key_count == count
    for index = 1, count do
      local quota_index
      slots[index], quota_index, flags[index], hits[index], at = unpack('<I2I2BI7', args, at)
      local quota = quotas[quota_index]
      check_quotas[index], admits[index] = quota, quota.count == 1 and admit_one or admit_several
      -- The short way is for checks that take, each on a key of its own, and of no more than three rates.
      all_admit = all_admit and slots[index] == index and flags[index] < 8 and quota.count <= 3
    end
    return at
  end

  -- All checks by the short way, or none.
  local function admit_all(first)
    for index = 1, count do
      local value, idle_us = admits[index](found[index], check_quotas[index], hits[index])
      if value == nil then
        return false
      end
      new_values[index], idle_at_us[index] = value, idle_us
    end
    for index = 1, count do
      if new_values[index] then
        put(KEYS[first + index], new_values[index], idle_at_us[index])
      end
    end
    return true
  end

  local add, finish, quota_for_any
  local function decide_any(first)
    if not add then
      add, finish, quota_for_any = any_request(now_us, put)
    end
    local failure
    for index = 1, count do
      local slot = slots[index]
      local is_known, damage = add(KEYS[first + slot], found[slot], quota_for_any(args, check_quotas[index]), flags[index],
        hits[index])
      if damage then
        failure = failure or pack('<BI2', damage, slot)
      elseif not is_known then
        found[slot] = false
      end
    end
    finish(failure)
    return failure
  end

  -- Decides the request whose keys follow the first, and appends what was found. Returns the new size of the reply. The value of its
  -- only key may be known already.
  local function decide(first, size, value)
    for slot = 1, key_count do
      found[slot] = value == nil and get(KEYS[first + slot]) or value or false
    end
    local failure
    if not (all_admit and admit_all(first)) then
      failure = decide_any(first)
    end
    if failure then
      reply[size + 1] = failure
      return size + 1
    end
    for slot = 1, key_count do
      reply[size + slot] = found[slot] or ABSENT
    end
    return size + key_count
  end

  return open, decide, admit_several
end

