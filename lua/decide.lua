-- Decides a batch of requests against the counters of one Redis. The decision is that of src/engine/algorithm/mod.rs, which is
-- the law. src/store/redis/script.rs is the only other place that knows this contract; state.rs there knows the values.
--
-- KEYS      the counters, each named once or more often; in a cluster all in one slot. Nothing else is read or written.
-- ARGV[1]   all numbers, little endian, packed without gaps:
--   I7 now        us since 1970, before the year 2100; 0 is the server's own TIME, read once
--   B  shared     1 if a key is named more than once, 0 if none is
--   I2 quotas     how many follow, each:
--     B  kind       0 fixed window, 1 sliding window, 2 bucket; + 4 if refused hits count; + 8 if denials are tracked
--     B  rates      1..8
--     I7 horizon    us, at most 50 years
--     per rate of a window: I7 period in us, I4 capacity in hits
--     per rate of a bucket: I4 capacity in hits, I7 tick in us, I7 weight and I4 leak and I7 highest level in units
--   the requests to the end; those that follow each other and differ only in their keys are told once:
--     I2 times      how many requests
--     I2 keys       how many keys each of them has: the first of KEYS that no request before it had, and those after it
--     I2 checks     how many checks each of them has, which follow:
--       I2 key        which of the request's keys, from 1
--       I2 quota      index into the quotas, from 1
--       B  flags      mode (0 enforce, 1 shadow, 2 quota); + 4 chained to the check before; + 8 gives its hits back
--       I7 hits       0..2^52-1
--   Checks of one request on one key have the same number of rates, because keys tell such rules apart.
--
-- Reply: one string of integers, i7 each, little endian: a list would have to be written and read one by one. For each request,
-- in order, either for each of its checks:
--     code          fits (1) or not (0); + 2 if a wait follows; + 4 if no wait would help; + 8 if denials follow;
--                   + 16 x the index of the governing rate, from 0
--     before, remaining   whole hits
--     reset         us
--     wait          us, 1.., where the code says so. Neither + 2 nor + 4: the hits would fit now
--     denials       hits, 1.., where the code says so
-- or one negative integer: nothing of this request was decided, because of the key with the index k:
--     -(4k + 1)     bad_types: it is not a string
--     -(4k + 2)     bad_response: it is not a state of ours, or of a newer release
--
-- Atomic: everything. Each request is decided on its own, all or nothing, and sees what those before it in the batch did.
-- Each key is read once, and written once if it changed, with its TTL. What forbids writing (out of memory, read-only)
-- forbids the first write, so that an error means that nothing was charged.
--
-- Value: B 16 (version 1) + 1 if previous windows follow + 2 if denials follow + 4 if cells are wide; I7 at, in us; the
-- cells, I4 each or I7 if wide; the previous windows, likewise; I7 denials. 10 per second, burst 100, after one hit:
--     KEYS[1] = {edge}b1/2:ip7:1.2.3.4
--     ARGV[1] = now 0, shared 0, quotas 1, [kind 2, rates 1, horizon 10000000, capacity 100, tick 1, weight 1000000, leak 10,
--               highest level 100000000], times 1, keys 1, checks 1, [key 1, quota 1, flags 0, hits 1]
--     value   = 16, at 1767225600000000, 1000000; PX 100
--     reply   = 1, 0, 99, 100000: fits, none before, 99 remain, full again in 0.1 s

local spread, unpack, pack = unpack, struct.unpack, struct.pack
local NARROW_MAX = 4294967295
local EXACT_MAX = 9007199254740992

local args = ARGV[1]
local now_us, shared, quota_count, at = unpack('<I7BI2', args)
-- A server that is told how long a key lives turns that into until when, and rewrites the command, which is a tenth of what it costs.
-- Servers from 7.0 on are told the latter, if the time is theirs.
local LIFE, born_us = 'PX', now_us
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
  born_us = now_us
  if redis.REDIS_VERSION_NUM then
    LIFE, born_us = 'PXAT', 0
  end
end

-- A rate is made for the short way, and its table only for who needs more.
local quotas, has_several = {}, false
for quota_index = 1, quota_count do
  local kind, count, horizon_us
  kind, count, horizon_us, at = unpack('<BBI7', args, at)
  local quota = { kind = kind, count = count, horizon_us = horizon_us, latest_us = now_us + horizon_us, rates_at = at,
    false, false, false }
  for index = 1, count do
    if kind % 4 == 2 then
      local capacity, tick_us, weight, leak, level_max
      capacity, tick_us, weight, leak, level_max, at = unpack('<I4I7I7I4I7', args, at)
      quota[index] = admit_bucket(capacity, tick_us, weight, leak, level_max)
    else
      local period_us, capacity
      period_us, capacity, at = unpack('<I7I4', args, at)
      quota[index] = (kind % 4 == 0 and admit_fixed_window or admit_sliding_window)(capacity, period_us)
    end
  end
  quotas[quota_index] = quota
  has_several = has_several or count > 1
end

-- Of each key that may be met again: the value as it would be stored now, false if absent. Of each that must be written at
-- the end: when it is idle.
local values, idle_from_us, changed, changed_count = {}, {}, {}, 0
local reply, size = {}, 0
local is_shared = shared == 1
local call, try = redis.call, redis.pcall
local texts = {}

local function set(key, value, idle_at_us)
  local life_us = idle_at_us - born_us
  local life_ms = (life_us + -life_us % 1000) / 1000
  local text = texts[life_ms]
  if not text then
    text = string.format('%.0f', life_ms > 1 and life_ms or 1)
    texts[life_ms] = text
  end
  call('SET', key, value, LIFE, text)
end

local write = set
if is_shared then
  write = function(key, value, idle_at_us)
    if not idle_from_us[key] then
      changed_count = changed_count + 1
      changed[changed_count] = key
    end
    values[key], idle_from_us[key] = value, idle_at_us
  end
end

-- The short way, for requests that are admitted, which is what nearly all of them are. It makes no tables and few calls, because
-- those are what costs in Lua. For a check of one rate: appends its answer, and returns the value to write and when it is idle;
-- false instead of a value if nothing changes. Returns nothing, and leaves everything as it was, where it does not apply: an
-- unusual value, a clock that has jumped, no room.
local function admit_one(value, quota, hits)
  local at_us, used, previous = 0, 0, 0
  if value then
    local length, head = #value, 0
    if length == 12 then
      head, at_us, used = unpack('<BI7I4', value)
    elseif length == 15 then
      head, at_us, used = unpack('<BI7I7', value)
      head = used < EXACT_MAX and head - 4 or 0
    elseif length == 16 then
      head, at_us, used, previous = unpack('<BI7I4I4', value)
      head = head - 1
    end
    if head ~= 16 or at_us > quota.latest_us then
      return nil
    end
  end
  local settled_us = at_us > now_us and at_us or now_us
  local before, remaining, reset_us, idle_at_us
  before, used, previous, remaining, reset_us, idle_at_us = quota[1](at_us, settled_us, used, previous, hits)
  if not before or used > NARROW_MAX and previous > 0 or previous > NARROW_MAX then
    return nil
  end
  reply[size + 1] = 1
  reply[size + 2] = before
  reply[size + 3] = remaining
  reply[size + 4] = reset_us + settled_us - now_us
  size = size + 4
  if hits == 0 then
    return false
  elseif previous > 0 then
    return pack('<BI7I4I4', 17, settled_us, used, previous), idle_at_us
  elseif used > NARROW_MAX then
    return pack('<BI7I7', 20, settled_us, used), idle_at_us
  end
  return pack('<BI7I4', 16, settled_us, used), idle_at_us
end

-- The same for two or three rates, without previous windows.
local admit_several
if has_several then
  admit_several = function(value, quota, hits)
    local is_two = quota.count == 2
    local narrow = is_two and '<BI7I4I4' or '<BI7I4I4I4'
    local wide = is_two and '<BI7I7I7' or '<BI7I7I7I7'
    local at_us, used_1, used_2, used_3 = 0, 0, 0, 0
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
      if head ~= 16 or at_us > quota.latest_us then
        return nil
      end
    end
    local settled_us = at_us > now_us and at_us or now_us
    local governs, before, remaining, reset_us, idle_at_us, previous = 1, nil, nil, nil, nil, nil
    before, used_1, previous, remaining, reset_us, idle_at_us = quota[1](at_us, settled_us, used_1, 0, hits)
    if not before or previous > 0 then
      return nil
    end
    local most = used_1
    for index = 2, quota.count do
      local its_before, its_used, its_previous, its_remaining, its_reset_us, its_idle_at_us =
        quota[index](at_us, settled_us, index == 2 and used_2 or used_3, 0, hits)
      if not its_before or its_previous > 0 then
        return nil
      end
      if its_remaining < remaining then
        governs, before, remaining, reset_us = index, its_before, its_remaining, its_reset_us
      end
      if index == 2 then
        used_2 = its_used
      else
        used_3 = its_used
      end
      most = its_used > most and its_used or most
      idle_at_us = its_idle_at_us > idle_at_us and its_idle_at_us or idle_at_us
    end
    reply[size + 1] = 16 * governs - 15
    reply[size + 2] = before
    reply[size + 3] = remaining
    reply[size + 4] = reset_us + settled_us - now_us
    size = size + 4
    if hits == 0 then
      return false
    elseif most > NARROW_MAX then
      return pack(wide, 20, settled_us, used_1, used_2, used_3), idle_at_us
    end
    return pack(narrow, 16, settled_us, used_1, used_2, used_3), idle_at_us
  end
end

-- What admits a check by the short way, if anything does: it must take, and have no more than three rates.
local function admitting(quota, flags)
  if flags >= 8 or quota.count > 3 then
    return nil
  end
  return quota.count == 1 and admit_one or admit_several
end

-- The value of a key, once read. An error has no length; one of type concerns only who uses the key, any other ends the call.
local broken
local function read(key)
  local value = values[key]
  if value == nil then
    value = try('GET', key)
    if value and #value == 0 and type(value) == 'table' and string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then
      broken = value
    end
    values[key] = value
  end
  return value
end

-- The checks of the requests at hand.
local slots, check_quotas, flags, hits, admits = {}, {}, {}, {}, {}
local new_values, idle_at_us = {}, {}

-- Any request, by the long way.
local decide_any, quota_for_any
local function decide(first, count)
  if not decide_any then
    decide_any, quota_for_any = any_request(now_us, values, write, reply)
  end
  for index = 1, count do
    local key_index = first + slots[index]
    local key = KEYS[key_index]
    read(key)
    local quota = quota_for_any(args, check_quotas[index])
    size = decide_any(key_index, key, quota, flags[index], hits[index], index == count, size)
  end
end

-- A request of several checks, each on a key of its own: all of them by the short way, or none.
local function admit_all(first, count)
  local size_before = size
  for index = 1, count do
    local value, idle_us = admits[index](read(KEYS[first + index]), check_quotas[index], hits[index])
    if value == nil then
      size = size_before
      return false
    end
    new_values[index], idle_at_us[index] = value, idle_us
  end
  for index = 1, count do
    if new_values[index] then
      write(KEYS[first + index], new_values[index], idle_at_us[index])
    end
  end
  return true
end

local args_size, first = #args, 0
while at <= args_size do
  local times, key_count, count
  times, key_count, count, at = unpack('<I2I2I2', args, at)
  local all_admit = key_count == count
  for index = 1, count do
    local quota_index
    slots[index], quota_index, flags[index], hits[index], at = unpack('<I2I2BI7', args, at)
    check_quotas[index] = quotas[quota_index]
    admits[index] = admitting(quotas[quota_index], flags[index])
    all_admit = all_admit and admits[index] and slots[index] == index
  end
  local last = first + times * key_count
  if not all_admit then
    for request = first, last - 1, key_count do
      decide(request, count)
      if broken then
        return broken
      end
    end
  elseif count > 1 then
    for request = first, last - 1, key_count do
      if not admit_all(request, count) then
        decide(request, count)
        if broken then
          return broken
        end
      end
    end
  else
    -- Nearly all requests have one check, so this is admit_all for one, without its tables.
    local admit, quota, taken = admits[1], check_quotas[1], hits[1]
    for request = first, last - 1 do
      local key = KEYS[request + 1]
      local value
      if is_shared then
        value = read(key)
      else
        value = try('GET', key)
        if value and #value == 0 then
          value = read(key)
        end
      end
      local new_value, idle_us = admit(value, quota, taken)
      if new_value then
        write(key, new_value, idle_us)
      elseif new_value == nil then
        values[key] = value
        decide(request, 1)
        if broken then
          return broken
        end
      end
    end
  end
  first = last
end

for index = 1, changed_count do
  local key = changed[index]
  set(key, values[key], idle_from_us[key])
end

-- So many at a time, because what is spread has to fit on Lua's stack.
local parts = {}
for first = 1, size, 256 do
  local last = first + 255 < size and first + 255 or size
  parts[#parts + 1] = pack('<' .. string.rep('i7', last - first + 1), spread(reply, first, last))
end
return table.concat(parts)
