-- Decides the requests of a group, whatever their checks: by the short way if all of them have room, else by the long one. What
-- was found is appended to the reply as the contract in decide.lua says. What it needs of a store it is given: how to try to read,
-- what is known of keys that are met again, if any are, and put(key, value, idle_at_us, quota).
--
-- Makes the two functions at its end, where they are needed: most requests have one check, for which decide.lua does without.
local function any_group(now_us, args, quotas, reply, try, values, put)
  local ABSENT = '\0'

  local function get(key)
    local value
    if values then
      value = values[key]
    end
    if value == nil then
      value = try('GET', key)
      if values then
        values[key] = value
      end
    end
    return value
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
      check_quotas[index], admits[index] = quota, quota.admit
      -- The short way is for checks that take, each on a key of its own.
      all_admit = all_admit and slots[index] == index and flags[index] < 8 and quota.admit
    end
    return at
  end

  -- All checks by the short way, or none.
  local function admit_all(first)
    for index = 1, count do
      local value, idle_us = admits[index](found[index], now_us, check_quotas[index], hits[index])
      if value == nil then
        return false
      end
      new_values[index], idle_at_us[index] = value, idle_us
    end
    for index = 1, count do
      if new_values[index] then
        put(KEYS[first + index], new_values[index], idle_at_us[index], check_quotas[index])
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

  -- Decides the request whose keys follow the first, and appends what was found. Returns the new size of the reply, or also an error
  -- that ends the call. The value of its only key may be known already.
  local function decide(first, size, value)
    for slot = 1, key_count do
      if value == nil then
        found[slot] = get(KEYS[first + slot])
      else
        found[slot] = value
      end
      -- An error has no length; one of type concerns only who uses the key, any other ends the call.
      local error = found[slot]
      if error and #error == 0 and type(error) == 'table' and string.sub(error.err, 1, 9) ~= 'WRONGTYPE' then
        return size, error
      end
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

  return open, decide
end

