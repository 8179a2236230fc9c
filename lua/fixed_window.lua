-- Windows that begin at multiples of their length since 1970. The cell is the count of the current one.
-- Mirrors src/engine/algorithm/fixed_window.rs. Pure: no redis.call.
-- A table of functions, made only where one is needed.

local function fixed_window()
  local FIXED_COUNT_MAX = 4503599627370495

  -- Reads one rate from the arguments: see the contract in decide.lua.
  local function rate(args, at)
    local period_us, capacity, next_at = struct.unpack('<I7I4', args, at)
    return { period_us = period_us, capacity = capacity }, next_at
  end

  local function settle(rate, at_us, now_us, cell)
    local period_us = rate.period_us
    if at_us - at_us % period_us ~= now_us - now_us % period_us then
      cell.used = 0
    end
  end

  local function used(_, _, cell)
    return cell.used
  end

  local function charge(_, cell, hits)
    local used = cell.used + hits
    cell.used = used < FIXED_COUNT_MAX and used or FIXED_COUNT_MAX
  end

  local function refund(_, cell, hits)
    cell.used = cell.used > hits and cell.used - hits or 0
  end

  -- When the cell is as good as absent: at the end of the window.
  local function idle_at_us(rate, now_us, cell)
    return cell.used == 0 and now_us or now_us + rate.period_us - now_us % rate.period_us
  end

  return { rate = rate, settle = settle, used = used, charge = charge, refund = refund, idle_at_us = idle_at_us }
end

