-- Decides the requests of a group, whatever their checks: by the short way if all of them have room, else by the long one. What
-- was found is left where it is told from, as the contract in decide.lua says. What it needs of a store it is given: what was found
-- of KEYS so far, how to get one, and put(key, value, idle_at_us, quota).
--
-- Makes the two functions at its end, where they are needed: most requests have one check, for which decide.lua does without.
local function any_group(now_us, args, quotas, found, get, put)
  local ABSENT = '\0'

  -- The checks of the requests at hand, and what is found and written for each.
  local slots, check_quotas, flags, hits, admits = {}, {}, {}, {}, {}
  local new_values, idle_at_us = {}, {}
  local key_count, count, all_admit

  -- Reads what the requests of a group have in common. Returns where the next group begins.
  local function open(at)
    key_count, count, at = unpack('<I2I2', args, at)
    all_admit = key_count == count
    for index = 1, count do
      local quota_index
      slots[index], quota_index, flags[index], hits[index], at = unpack('<I2I2BI7', args, at)
      local quota = quotas[quota_index]
      check_quotas[index], admits[index] = quota, quota.admit
      -- The short way is for checks that take, each on a key of its own.
      all_admit = all_admit and slots[index] == index and flags[index] < 8 and quota.admit
    end
    return at
  end

  -- All checks by the short way, or none.
  local function admit_all(before)
    for index = 1, count do
      local value, idle_us = admits[index](found[before + index], now_us, hits[index])
      if value == nil then
        return false
      end
      new_values[index], idle_at_us[index] = value, idle_us
    end
    for index = 1, count do
      if new_values[index] then
        put(KEYS[before + index], new_values[index], idle_at_us[index], check_quotas[index])
      end
    end
    return true
  end

  local add, finish, quota_for_any
  local function decide_any(before)
    if not add then
      add, finish, quota_for_any = any_request(now_us, put)
    end
    local failure
    for index = 1, count do
      local slot = slots[index]
      local position = before + slot
      local is_known, damage = add(KEYS[position], found[position], quota_for_any(args, check_quotas[index]), flags[index],
        hits[index])
      if damage then
        failure = failure or pack('<BI2', damage, slot)
      elseif not is_known then
        found[position] = false
      end
    end
    finish(failure)
    return failure
  end

  -- Decides the request whose keys begin at this position. Returns an error if one ends the call.
  local function decide(first)
    local last = first + key_count - 1
    for position = first, last do
      local value = found[position] or get(position)
      -- An error has no length; one of type concerns only who uses the key, any other ends the call.
      if value and #value == 0 and type(value) == 'table' and string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then
        return value
      end
    end
    local failure
    if not (all_admit and admit_all(first - 1)) then
      failure = decide_any(first - 1)
    end
    for position = first, last do
      if failure then
        found[position] = position == first and failure or ''
      elseif not found[position] then
        found[position] = ABSENT
      end
    end
  end

  return open, decide
end

