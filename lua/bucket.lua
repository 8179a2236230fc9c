-- Token bucket and leaky bucket: a level that hits raise and time lowers. The cell is the level, in units of which one hit
-- weighs `weight` and `leak` leave in a tick. Mirrors src/engine/algorithm/bucket.rs. Pure: no redis.call.
-- A table of functions, made only where one is needed: Redis runs the whole text on every call.

local function bucket()
  -- Reads one rate from the arguments: see the contract in decide.lua.
  local function rate(args, at)
    local capacity, tick_us, weight, leak, level_max, next_at = struct.unpack('<I4I7I7I4I7', args, at)
    return { capacity = capacity, tick_us = tick_us, weight = weight, leak = leak, level_max = level_max }, next_at
  end

  local function ticks_to_leak(rate, level)
    return (level + -level % rate.leak) / rate.leak
  end

  -- From now to the beginning of the tick in which this much has leaked.
  local function us_to_leak(rate, now_us, level)
    if level == 0 then
      return 0
    end
    return ticks_to_leak(rate, level) * rate.tick_us - now_us % rate.tick_us
  end

  local function settle(rate, at_us, now_us, cell)
    local level, tick_us = cell.used, rate.tick_us
    if level > rate.level_max then
      level = rate.level_max
    end
    local ticks = ((now_us - now_us % tick_us) - (at_us - at_us % tick_us)) / tick_us
    if ticks >= ticks_to_leak(rate, level) then
      cell.used = 0
    else
      cell.used = level - ticks * rate.leak
    end
  end

  -- In whole hits, rounded up.
  local function used(rate, _, cell)
    local level, weight = cell.used, rate.weight
    return (level + -level % weight) / weight
  end

  -- As many units as the hits weigh, and no more than there can be.
  local function weigh(rate, hits)
    local weight, level_max = rate.weight, rate.level_max
    -- Divides by the weight first: hits x weight may be far from exact. A highest level is a whole number of hits.
    return hits < level_max / weight and hits * weight or level_max
  end

  -- With `charge`, hits that do not fit put the bucket into debt, by one burst at the most.
  local function charge(rate, cell, hits)
    local level = cell.used + weigh(rate, hits)
    if level > rate.level_max then
      level = cell.used > rate.level_max and cell.used or rate.level_max
    end
    cell.used = level
  end

  local function refund(rate, cell, hits)
    local level = cell.used - weigh(rate, hits)
    cell.used = level > 0 and level or 0
  end

  -- To a full token bucket, which is an empty leaky one.
  local function reset_us(rate, now_us, cell)
    return us_to_leak(rate, now_us, cell.used)
  end

  -- Until this many hits fit, where they do not fit now but can.
  local function wait_us(rate, now_us, cell, hits)
    return us_to_leak(rate, now_us, cell.used - (rate.capacity - hits) * rate.weight)
  end

  -- When the cell is as good as absent.
  local function idle_at_us(rate, now_us, cell)
    return now_us + us_to_leak(rate, now_us, cell.used)
  end

  return {
    rate = rate,
    settle = settle,
    used = used,
    charge = charge,
    refund = refund,
    reset_us = reset_us,
    wait_us = wait_us,
    idle_at_us = idle_at_us,
  }
end

-- The same for a rate that has room, settled, charged and read in one call: given at_us, now_us, used, previous and hits, it
-- returns before, used, previous, remaining, reset_us and idle_at_us, or nothing if there is no room. Calls and fields are
-- what costs in Lua, so the functions above are written out here, and the rate is bound once.
local function admit_bucket(capacity, tick_us, weight, leak, level_max)
  return function(at_us, now_us, level, _, hits)
    local into_us = now_us % tick_us
    if level > 0 then
      if level > level_max then
        level = level_max
      end
      local ticks = (now_us - into_us - at_us + at_us % tick_us) / tick_us
      if ticks >= (level + -level % leak) / leak then
        level = 0
      else
        level = level - ticks * leak
      end
    end
    local before = (level + -level % weight) / weight
    local remaining = capacity - before - hits
    if remaining < 0 then
      return nil
    end
    level = level + hits * weight
    local reset_us = level == 0 and 0 or (level + -level % leak) / leak * tick_us - into_us
    return before, level, 0, remaining, reset_us, now_us + reset_us
  end
end

