-- A window that moves with the clock, estimated from two fixed ones. The cell is the count of the current one and of the
-- previous one. Mirrors src/engine/algorithm/sliding_window.rs. Pure: no redis.call.
-- A table of functions, made only where one is needed.

local function sliding_window()
  local SLIDING_COUNT_MAX = 4294967296
  local SLIDING_PARTS = 1000000

  -- Reads one rate from the arguments: see the contract in decide.lua.
  local function rate(args, at)
    local period_us, capacity, next_at = struct.unpack('<I7I4', args, at)
    return { period_us = period_us, capacity = capacity, part_us = period_us / SLIDING_PARTS }, next_at
  end

  -- No count is ever above the highest; one that is was not written by us, and would not stay exact.
  local function settle(rate, at_us, now_us, cell)
    local period_us = rate.period_us
    if cell.used > SLIDING_COUNT_MAX then
      cell.used = SLIDING_COUNT_MAX
    end
    if cell.previous > SLIDING_COUNT_MAX then
      cell.previous = SLIDING_COUNT_MAX
    end
    local passed_us = (now_us - now_us % period_us) - (at_us - at_us % period_us)
    if passed_us >= period_us then
      cell.previous = passed_us == period_us and cell.used or 0
      cell.used = 0
    end
  end

  -- x / y rounded up, of integers. `%` is exact and takes the sign of y, so that nothing is ever rounded.
  local function div_ceil(x, y)
    return (x + -x % y) / y
  end

  local function used(rate, now_us, cell)
    if cell.previous == 0 then
      return cell.used
    end
    local into_us = now_us % rate.period_us
    local part = (into_us - into_us % rate.part_us) / rate.part_us
    return cell.used + div_ceil(cell.previous * (SLIDING_PARTS - part), SLIDING_PARTS)
  end

  local function charge(_, cell, hits)
    local used = cell.used + hits
    cell.used = used < SLIDING_COUNT_MAX and used or SLIDING_COUNT_MAX
  end

  -- Gives back what was taken in the current window first, then what was taken in the previous one.
  local function refund(_, cell, hits)
    local current = cell.used < hits and cell.used or hits
    cell.used = cell.used - current
    local rest = hits - current
    cell.previous = cell.previous > rest and cell.previous - rest or 0
  end

  -- When the cell is as good as absent: its hits leave with the window after theirs.
  local function idle_at_us(rate, now_us, cell)
    local end_us = now_us + rate.period_us - now_us % rate.period_us
    if cell.used > 0 then
      return end_us + rate.period_us
    end
    return cell.previous > 0 and end_us or now_us
  end

  return { rate = rate, settle = settle, used = used, charge = charge, refund = refund, idle_at_us = idle_at_us }
end

