-- Decides a batch of requests against the counters of one Redis. The decision is that of src/engine/algorithm/mod.rs, which is
-- the law. src/store/redis/script.rs is the only other place that knows this contract; state.rs there knows the values.
--
-- KEYS      the counters, each named once or more often; all in one cluster slot. Nothing else is read or written.
-- ARGV[1]   all numbers, little endian, packed without gaps:
--   I7 now        us since 1970, before the year 2100; 0 is the server's own TIME, read once
--   B  shared     1 if a key is named more than once, 0 if none is
--   I2 quotas     how many follow, each:
--     B  kind       0 fixed window, 1 sliding window, 2 bucket; + 4 if refused hits count; + 8 if denials are tracked
--     B  rates      1..8
--     I7 horizon    us, at most 50 years
--     per rate of a window: I7 period in us, I4 capacity in hits
--     per rate of a bucket: I4 capacity in hits, I7 tick in us, I7 weight and I4 leak and I7 highest level in units
--   the checks to the end, each:
--     I2 key        index into KEYS, from 1
--     I2 quota      index into the quotas, from 1
--     I2 times      that many requests of this one check alone, on this key and those after it; else 1
--     B  flags      mode (0 enforce, 1 shadow, 2 quota); + 4 chained to the check before; + 8 gives its hits back;
--                   + 16 last check of its request
--     I7 hits       0..2^52-1
--   Checks of one request on one key have the same number of rates, because keys tell such rules apart.
--
-- Reply: one string of integers, i7 each, little endian: a list would have to be written and read one by one. For each request, in order, either for each of its checks:
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
--               highest level 100000000], [key 1, quota 1, times 1, flags 16, hits 1]
--     value   = 16, at 1767225600000000, 1000000; PX 100
--     reply   = 1, 0, 99, 100000: fits, none before, 99 remain, full again in 0.1 s

local spread, unpack, pack = unpack, struct.unpack, struct.pack
local NARROW_MAX = 4294967295

local args = ARGV[1]
local now_us, shared, quota_count, at = unpack('<I7BI2', args)
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
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
  local ttl_us = idle_at_us - now_us
  local ttl_ms = (ttl_us + -ttl_us % 1000) / 1000
  local text = texts[ttl_ms]
  if not text then
    text = string.format('%d', ttl_ms > 1 and ttl_ms or 1)
    texts[ttl_ms] = text
  end
  call('SET', key, value, 'PX', text)
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

-- The short way, for a request of one check that is admitted, which is what nearly all of them are. It makes no tables and
-- few calls, because those are what costs in Lua. Returns nothing, and leaves everything as it was, where it does not
-- apply: an unusual value, a clock that has jumped, no room.
local function admit_one(key, value, quota, hits)
  local at_us, used, previous = 0, 0, 0
  if value then
    local length, head = #value, 0
    if length == 12 then
      head, at_us, used = unpack('<BI7I4', value)
    elseif length == 15 then
      head, at_us, used = unpack('<BI7I7', value)
      head = head - 4
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
  if hits > 0 then
    if previous > 0 then
      write(key, pack('<BI7I4I4', 17, settled_us, used, previous), idle_at_us)
    elseif used > NARROW_MAX then
      write(key, pack('<BI7I7', 20, settled_us, used), idle_at_us)
    else
      write(key, pack('<BI7I4', 16, settled_us, used), idle_at_us)
    end
  end
  reply[size + 1] = 1
  reply[size + 2] = before
  reply[size + 3] = remaining
  reply[size + 4] = reset_us + settled_us - now_us
  size = size + 4
  return true
end

-- The same for two or three rates, without previous windows.
local admit_several
if has_several then
  admit_several = function(key, value, quota, hits)
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
        head = head - 4
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
    if hits > 0 then
      if most > NARROW_MAX then
        write(key, pack(wide, 20, settled_us, used_1, used_2, used_3), idle_at_us)
      else
        write(key, pack(narrow, 16, settled_us, used_1, used_2, used_3), idle_at_us)
      end
    end
    reply[size + 1] = 16 * governs - 15
    reply[size + 2] = before
    reply[size + 3] = remaining
    reply[size + 4] = reset_us + settled_us - now_us
    size = size + 4
    return true
  end
end

local decide_any, quota_for_any
local args_size, is_between = #args, false

while at <= args_size do
  local key_index, quota_index, times, flags, hits
  key_index, quota_index, times, flags, hits, at = unpack('<I2I2I2BI7', args, at)
  local quota = quotas[quota_index]
  -- The short way is for a check that is alone in its request and takes.
  local admit = quota.count == 1 and admit_one or admit_several
  if is_between or flags < 16 or flags % 16 >= 8 or quota.count > 3 then
    admit = nil
  end
  local is_met_again = is_shared or not admit
  for index = key_index, key_index + times - 1 do
    local key = KEYS[index]
    local value
    if is_met_again then
      value = values[key]
    end
    if value == nil then
      value = try('GET', key)
      -- An error has no length. One of type concerns only who uses the key.
      if value and #value == 0 and type(value) == 'table' and string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then
        return value
      end
      if is_met_again then
        values[key] = value
      end
    end
    if not admit or not admit(key, value, quota, hits) then
      if not decide_any then
        decide_any, quota_for_any = any_request(now_us, values, write, reply)
      end
      values[key] = value
      size = decide_any(index, key, quota_for_any(args, quota), flags, hits, size)
    end
  end
  is_between = flags < 16
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
