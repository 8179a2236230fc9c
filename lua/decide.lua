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
--     I7 horizon    us, at most a year
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
-- Each key is read once, or twice where the first reading found no string; and written once if it changed, with its TTL. What
-- forbids writing (out of memory, read-only) forbids the first write, so that such an error means that nothing was charged.
--
-- Value: B 16 (version 1) + 1 if previous windows follow + 2 if denials follow + 4 if cells are wide; I7 at, in us; the
-- cells, I4 each or I7 if wide; the previous windows, likewise; I7 denials. 10 per second, burst 100, after one hit:
--     KEYS[1] = {edge}b1/2:ip7:1.2.3.4
--     ARGV[1] = now 0, shared 0, quotas 1, [kind 2, rates 1, horizon 10000000, capacity 100, tick 1, weight 1000000, leak 10,
--               highest level 100000000], times 1, keys 1, checks 1, [key 1, quota 1, flags 0, hits 1]
--     value   = 16, at 1767225600000000, 1000000; lives for 100 ms
--     reply   = now 1767225600000000, 0: it was absent. The next one finds 16, 1767225600000000, 1000000

local KEYS, args, call, try = KEYS, ARGV[1], redis.call, redis.pcall
local now_us, shared, quota_count, at = unpack('<I7BI2', args)
-- Servers from 7.0 on, if the time is theirs, are told until when a key lives, others how long.
local lives, born_us = 'PX', now_us
if now_us == 0 then
  local time = call('TIME')
  now_us = time[1] * 1000000 + time[2]
  if redis.REDIS_VERSION_NUM then
    lives = 'PXAT'
  else
    born_us = now_us
  end
end

-- Where each quota begins in the arguments; and what admits to a counter of it by the short way, if there is one.
local quotas = {}
for index = 1, quota_count do
  local kind, rates = unpack('BB', args, at)
  local algorithm, rates_at, maker, admit = kind % 4, at + 9, false, false
  if rates == 1 then
    maker = algorithm == 0 and admit_fixed_window or algorithm == 1 and admit_sliding_window or admit_bucket
  elseif rates <= 3 then
    maker = algorithm == 0 and admit_fixed_windows or algorithm == 2 and admit_buckets
  end
  if maker then
    admit = maker(now_us, args, rates_at, rates)
  end
  quotas[index] = { at = at, admit = admit }
  at = rates_at + rates * (algorithm == 2 and 29 or 11)
end

-- How the life of a key is told: in ms and as text, because numbers get more digits than they have. Rounded up: %d cuts off what is
-- behind the point.
local function life_of(life_us)
  local life_ms = (life_us + 999) / 1000
  return string.format('%d', life_ms > 1 and life_ms or 1)
end

-- What is found for each of KEYS, and told in the end: nil as long as it was not asked for, false if it is not there. All in one go
-- costs less than one by one; but there only strings are found, nothing is if it is not permitted, and Lua has room for so many.
local key_total = #KEYS
local found = shared == 0 and key_total > 1 and key_total <= 1000 and try('MGET', unpack_all(KEYS)) or {}
if found.err then
  found = {}
end

-- Reads and writes for whoever needs more than the loop below, where the same is written out: get(position), which finds whatever
-- is there, and an error if that is not a string; and put(key, value, idle_at_us, quota), for what get() has found to be a string or
-- nothing. Where keys are met again they are written in the end, by finish().
local function keeper(KEYS, found, call, try, life_of, lives, born_us, is_shared)
  local life_texts, life_ends_us = {}, {}
  local function set(key, value, idle_at_us, quota)
    -- Most counters of a quota live as long as each other.
    if life_ends_us[quota] ~= idle_at_us then
      life_texts[quota], life_ends_us[quota] = life_of(idle_at_us - born_us), idle_at_us
    end
    call('SET', key, value, lives, life_texts[quota])
  end

  if not is_shared then
    return function(position)
      local value = try('GET', KEYS[position])
      found[position] = value
      return value
    end, set
  end

  -- The value of each key as it would be stored now, and of those that changed, when they are idle, and by which quota.
  local values, changed, idle_from_us, quota_of = {}, {}, {}, {}

  local function get(position)
    local key = KEYS[position]
    local value = values[key]
    if value == nil then
      value = try('GET', key)
      values[key] = value
    end
    found[position] = value
    return value
  end

  local function put(key, value, idle_at_us, quota)
    if not idle_from_us[key] then
      changed[#changed + 1] = key
    end
    values[key], idle_from_us[key], quota_of[key] = value, idle_at_us, quota
  end

  local function finish()
    for index = 1, #changed do
      local key = changed[index]
      set(key, values[key], idle_from_us[key], quota_of[key])
    end
  end

  return get, put, finish
end

local get, put, finish
if shared == 1 then
  get, put, finish = keeper(KEYS, found, call, try, life_of, lives, born_us, true)
end

local open, decide
local args_size, first = #args, 1
while at <= args_size do
  local times, key_count, count, _, quota_index, flags, hits, next_at = unpack('<I2I2I2I2I2BI7', args, at)
  local quota, is_open, life, life_to_us = quotas[quota_index], false, nil, nil
  -- What admits a request of one check, which nearly all are.
  local admit = count == 1 and flags < 8 and quota.admit
  local next_first = first + times * key_count
  for position = first, next_first - 1, key_count do
    local key, value, new_value, idle_at_us = KEYS[position], found[position], nil, nil
    if admit then
      if value == nil then
        if finish then
          value = get(position)
        else
          value = try('GET', key)
          found[position] = value
        end
      end
      new_value, idle_at_us = admit(value, now_us, hits)
    end
    if not new_value then
      -- Without a write nobody finds out that what MGET has not found is there, but not a string.
      if not value then
        new_value = nil
      end
    elseif finish then
      put(key, new_value, idle_at_us, quota)
    else
      if life_to_us ~= idle_at_us then
        life, life_to_us = life_of(idle_at_us - born_us), idle_at_us
      end
      if value then
        call('SET', key, new_value, lives, life)
      else
        -- What is there all the same is not a string, and is left to the long way.
        new_value = call('SET', key, new_value, lives, life, 'NX') or nil
      end
    end
    if new_value == nil then
      if not get then
        get, put = keeper(KEYS, found, call, try, life_of, lives, born_us, false)
      end
      if not decide then
        open, decide = long_way()(now_us, args, quotas, found, get, put)
      end
      if not is_open then
        is_open, next_at = true, open(at + 2)
      end
      local broken = decide(position)
      if broken then
        return broken
      end
    elseif not value then
      found[position] = '\0'
    end
  end
  first, at = next_first, next_at
end

if finish then
  finish()
end
return pack('<I7', now_us) .. table.concat(found)
