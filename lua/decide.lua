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
--     I2 keys       1.., how many keys each of them has: the first of KEYS that no request before it had, and those after it
--     I2 checks     1.., how many checks each of them has, which follow, at least one for each key:
--       I2 key        which of the request's keys, from 1
--       I2 quota      index into the quotas, from 1
--       B  flags      mode (0 enforce, 1 shadow, 2 quota); + 4 chained to the check before; + 8 gives its hits back
--       I7 hits       0..2^52-1
--   Checks of one request on one key have the same number of rates, because keys tell such rules apart.
--
-- Reply: one string. I7 now, the time that everything was decided at; then for each request, in order, what was found for each of
-- its keys, in order:
--     a value      as it was when the request was decided. Its first byte and the number of rates tell its length
--     B 0          the key was absent, or had a state that does not count for these checks
-- or, instead of all its keys, why nothing of this request was decided:
--     B 1, I2 key  bad_types: that key of the request, from 1, is not a string
--     B 2, I2 key  bad_response: it is not a state of ours, or of a newer release
-- The answers follow from that, and are worked out by the engine, which decides once more what is decided here: nothing has to be
-- told twice, and Redis has better things to do.
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
--     reply   = now 1767225600000000, 0: it was absent. The next one finds 16, 1767225600000000, 1000000

local unpack, pack = struct.unpack, struct.pack
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
local quotas = {}
for quota_index = 1, quota_count do
  local kind, count, horizon_us
  kind, count, horizon_us, at = unpack('<BBI7', args, at)
  local quota = { kind = kind, count = count, horizon_us = horizon_us, rates_at = at, false }
  for index = 1, count do
    if kind % 4 == 2 then
      local capacity, tick_us, weight, leak, level_max
      capacity, tick_us, weight, leak, level_max, at = unpack('<I4I7I7I4I7', args, at)
      quota[index] = admit_bucket(now_us, capacity, tick_us, weight, leak, level_max)
    else
      local period_us, capacity
      period_us, capacity, at = unpack('<I7I4', args, at)
      quota[index] = (kind % 4 == 0 and admit_fixed_window or admit_sliding_window)(now_us, period_us, capacity)
    end
  end
  quotas[quota_index] = quota
end

local call, try = redis.call, redis.pcall

-- Most keys that are written one after the other live as long as each other.
local text, text_of_us
local function set(key, value, idle_at_us)
  if idle_at_us ~= text_of_us then
    local life_us = idle_at_us - born_us
    local life_ms = (life_us + -life_us % 1000) / 1000
    local low = life_ms % 1000000
    -- In two halves, because where a long has 32 bits, so has %d.
    text = life_ms < 1000000 and string.format('%d', life_ms > 1 and life_ms or 1)
      or string.format('%d%06d', (life_ms - low) / 1000000, low)
    text_of_us = idle_at_us
  end
  call('SET', key, value, LIFE, text)
end

-- An error has no length; one of type concerns only who uses the key, any other ends the call.
local broken
local function get(key)
  local value = try('GET', key)
  if value and #value == 0 and type(value) == 'table' and string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then
    broken = value
  end
  return value
end

-- Where keys are met again: the value of each as it would be stored now, and of those that must be written at the end, when they
-- are idle.
local put, values, idle_from_us, changed = set, nil, nil, nil
if shared == 1 then
  values, idle_from_us, changed = {}, {}, {}
  local get_once = get
  get = function(key)
    local value = values[key]
    if value == nil then
      value = get_once(key)
      values[key] = value
    end
    return value
  end
  put = function(key, value, idle_at_us)
    if not idle_from_us[key] then
      changed[#changed + 1] = key
    end
    values[key], idle_from_us[key] = value, idle_at_us
  end
end

-- The short way, for requests that are admitted, which is what nearly all of them are. It makes no tables and few calls, because
-- those are what costs in Lua. For a check of one rate: returns the value to write and when it is idle; false instead of a value if
-- nothing changes. Returns nothing where it does not apply: an unusual value, a clock that is behind, no room.
local function admit_one(value, quota, hits)
  local at_us, used, previous = now_us, 0, 0
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
    if head ~= 16 or at_us > now_us then
      return nil
    end
  end
  local idle_at_us
  used, previous, idle_at_us = quota[1](at_us, used, previous, hits)
  if not used or previous > NARROW_MAX then
    return nil
  elseif hits == 0 then
    return false
  elseif previous > 0 then
    return pack('<BI7I4I4', 17, now_us, used, previous), idle_at_us
  elseif used > NARROW_MAX then
    return pack('<BI7I7', 20, now_us, used), idle_at_us
  end
  return pack('<BI7I4', 16, now_us, used), idle_at_us
end

local reply, size = { pack('<I7', now_us) }, 1
local open, decide, admit_several
local function need_any_group()
  if not open then
    open, decide, admit_several = any_group(now_us, args, quotas, admit_one, get, put, reply)
  end
end

local args_size, first = #args, 0
while at <= args_size do
  local times, key_count, count, _, quota_index, flags, hits, next_at = unpack('<I2I2I2I2I2BI7', args, at)
  local quota, is_open = quotas[quota_index], false
  -- What admits a request of one check, which nearly all are, without all that several take.
  local admit = count == 1 and flags < 8 and quota.count == 1 and admit_one
  if count == 1 and flags < 8 and (quota.count == 2 or quota.count == 3) then
    need_any_group()
    admit = admit_several
  end
  local last = first + times * key_count
  for request = first, last - 1, key_count do
    local key, value, new_value, idle_us = KEYS[request + 1], nil, nil, nil
    if admit then
      value = get(key)
      new_value, idle_us = admit(value, quota, hits)
    end
    if new_value == nil then
      need_any_group()
      if not is_open then
        is_open, next_at = true, open(at + 2)
      end
      size = decide(request, size, value)
      if broken then
        return broken
      end
    else
      size = size + 1
      reply[size] = value or '\0'
      if new_value then
        put(key, new_value, idle_us)
      end
    end
  end
  first, at = last, next_at
end

if changed then
  for index = 1, #changed do
    local key = changed[index]
    set(key, values[key], idle_from_us[key])
  end
end

return table.concat(reply)
