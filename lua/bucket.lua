-- Token bucket and leaky bucket: a level that hits raise and time lowers. The cell is the level, in units of which one hit
-- weighs `weight` and `leak` leave in a tick. Mirrors src/engine/algorithm/bucket.rs. Pure: no redis.call.
-- A table of functions, made only where one is needed.

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

  -- When the cell is as good as absent.
  local function idle_at_us(rate, now_us, cell)
    return now_us + us_to_leak(rate, now_us, cell.used)
  end

  return { rate = rate, settle = settle, used = used, charge = charge, refund = refund, idle_at_us = idle_at_us }
end

