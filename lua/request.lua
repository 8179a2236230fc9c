-- Decides any request, check by check. Mirrors decide() of src/engine/algorithm/mod.rs, which is the law, but for what it reads off
-- the counters: the answer is worked out by whoever asked, from what was found here. No redis.call: what it needs of a store it is
-- given. Values are laid out as the contract in decide.lua says.
--
-- Makes the three functions at its end, where they are needed: most requests take the short way of decide.lua.
local function any_request(now_us, write)
  local NARROW_MAX = 4294967295
  local EXACT_MAX = 9007199254740992
  local HITS_MAX = 4503599627370495
  local BAD_TYPES, BAD_RESPONSE = 1, 2
  local SHADOW, QUOTA = 1, 2

  -- States and checks are used again by the next request of the batch: in Lua, making a table costs more than a decision.

  local function new_state()
    return { at_us = 0, denials = 0, settled_denials = 0, count = 1,
      { used = 0, previous = 0, settled = 0, settled_previous = 0 } }
  end

  local function make_absent(state, count)
    state.at_us, state.denials, state.count = 0, 0, count
    for index = 1, count do
      local cell = state[index]
      if cell then
        cell.used, cell.previous = 0, 0
      else
        state[index] = { used = 0, previous = 0, settled = 0, settled_previous = 0 }
      end
    end
  end

  -- Reads a value of any shape into a state; false if it is damaged or not ours.
  local function decode(value, state)
    local size = #value
    if size < 12 then
      return false
    end
    local head, at_us = unpack('<BI7', value)
    local flags = head - 16
    if flags < 0 or flags > 7 or at_us >= EXACT_MAX then
      return false
    end
    local has_previous, has_denials = flags % 2 == 1, flags % 4 >= 2
    local width, format = 4, '<I4'
    if flags >= 4 then
      width, format = 7, '<I7'
    end
    local cells_size = size - 8 - (has_denials and 7 or 0)
    local count = cells_size / (has_previous and 2 * width or width)
    if count < 1 or count > 8 or count % 1 ~= 0 then
      return false
    end
    make_absent(state, count)
    state.at_us = at_us
    for index = 1, count do
      local cell, at = state[index], 9 + (index - 1) * width
      cell.used = unpack(format, value, at)
      if has_previous then
        cell.previous = unpack(format, value, at + count * width)
      end
      if cell.used >= EXACT_MAX or cell.previous >= EXACT_MAX then
        return false
      end
    end
    if has_denials then
      state.denials = unpack('<I7', value, size - 6)
    end
    return state.denials <= HITS_MAX
  end

  local function encode(state)
    local count, denials = state.count, state.denials
    local most, previous = 0, 0
    for index = 1, count do
      local cell = state[index]
      most = cell.used > most and cell.used or most
      previous = cell.previous > previous and cell.previous or previous
    end
    local wide = most > NARROW_MAX or previous > NARROW_MAX
    local format = wide and '<I7' or '<I4'
    local head = 16 + (previous > 0 and 1 or 0) + (denials > 0 and 2 or 0) + (wide and 4 or 0)
    local value = pack('<BI7', head, state.at_us)
    for index = 1, count do
      value = value .. pack(format, state[index].used)
    end
    if previous > 0 then
      for index = 1, count do
        value = value .. pack(format, state[index].previous)
      end
    end
    return denials > 0 and value .. pack('<I7', denials) or value
  end

  -- When this state becomes the same as an absent one.
  local function idle_at_us(state, quota)
    local its_idle_at_us, at_us = quota.algorithm.idle_at_us, state.at_us
    local latest_us = state.denials > 0 and at_us + quota.horizon_us or 0
    for index = 1, state.count do
      local idle_us = its_idle_at_us(quota[index], at_us, state[index])
      if idle_us > latest_us then
        latest_us = idle_us
      end
    end
    return latest_us
  end

  -- Brings a state up to now. Time does not run backwards for a counter, unless its own time is further ahead than anything
  -- could have put it there: then the clock has jumped, and the state is void.
  local function settle(state, quota, now_us)
    local count, horizon_us = quota.count, quota.horizon_us
    if state.count ~= count or state.at_us > now_us + horizon_us then
      make_absent(state, count)
    end
    local at_us = state.at_us
    if at_us > now_us then
      now_us = at_us
    end
    if now_us - at_us >= horizon_us then
      state.denials = 0
    end
    local its_settle = quota.algorithm.settle
    for index = 1, count do
      local cell = state[index]
      its_settle(quota[index], at_us, now_us, cell)
      cell.settled, cell.settled_previous = cell.used, cell.previous
    end
    state.at_us = now_us
    state.settled_denials = state.denials
  end

  local function return_to_settled(checks, count)
    for index = 1, count do
      local state = checks[index].state
      state.denials = state.settled_denials
      for cell_index = 1, state.count do
        local cell = state[cell_index]
        cell.used, cell.previous = cell.settled, cell.settled_previous
      end
    end
  end

  local function has_changed(state)
    for index = 1, state.count do
      local cell = state[index]
      if cell.used ~= cell.settled or cell.previous ~= cell.settled_previous then
        return true
      end
    end
    return state.denials ~= state.settled_denials
  end

  local function fits(state, quota, hits)
    local its_used, at_us = quota.algorithm.used, state.at_us
    for index = 1, quota.count do
      local rate = quota[index]
      if its_used(rate, at_us, state[index]) + hits > rate.capacity then
        return false
      end
    end
    return true
  end

  local function take(state, check, quota)
    local move, hits = quota.algorithm.charge, check.hits
    if check.gives_back then
      move, hits = quota.algorithm.refund, check.given_back
    end
    for index = 1, quota.count do
      move(quota[index], state[index], hits)
    end
  end

  local function note_denials(state, check, all_fit, admitted)
    if not all_fit then
      local denials = state.denials + check.hits
      state.denials = denials < HITS_MAX and denials or HITS_MAX
    elseif admitted then
      state.denials = 0
    end
  end

  -- Moves the counters check by check. At first as if nothing refused; if something does, again from the settled states, charging
  -- only what a refused request is charged.
  local function run(checks, count, refused)
    for index = 1, count do
      local check = checks[index]
      local state, quota = check.state, check.quota
      if not refused then
        check.fits = check.gives_back or fits(state, quota, check.hits)
      end
      if check.fits and not refused or quota.charges or check.gives_back then
        take(state, check, quota)
      end
      if quota.tracks_denials and check.hits > 0 then
        note_denials(state, check, check.fits, not refused)
      end
    end
  end

  -- A request is refused if an enforcing check does not fit, or if there are quota checks and none of them fits. The checks of
  -- one rule, chained to its first, fit together or not at all.
  local function refuses(checks, count)
    local quota_seen, quota_fits = false, false
    local index = 1
    while index <= count do
      local mode, all_fit = checks[index].mode, checks[index].fits
      index = index + 1
      while index <= count and checks[index].chained do
        all_fit = all_fit and checks[index].fits
        index = index + 1
      end
      if mode == QUOTA then
        quota_seen, quota_fits = true, quota_fits or all_fit
      elseif mode ~= SHADOW and not all_fit then
        return true
      end
    end
    return quota_seen and not quota_fits
  end

  local checks, count = {}, 0

  -- The state of a key, which an earlier check of the same request may have used already; or nil and what is wrong.
  local function state_of(key, value, check, quota)
    for index = 1, count do
      if checks[index].key == key then
        return checks[index].state
      end
    end
    local state = check.own_state
    if not value then
      make_absent(state, quota.count)
    elseif type(value) == 'table' then
      return nil, BAD_TYPES
    elseif not decode(value, state) then
      return nil, BAD_RESPONSE
    end
    return state
  end

  -- A state that several checks share is written once, with the TTL of the last.
  local function write_changed()
    for index = 1, count do
      local check, is_last = checks[index], true
      for later = index + 1, count do
        is_last = is_last and checks[later].state ~= check.state
      end
      if is_last and has_changed(check.state) then
        write(check.key, encode(check.state), idle_at_us(check.state, check.quota), check.quota)
      end
    end
  end

  -- Adds a check to the request at hand. Returns whether its key had a state that counts for it, or nil and what is wrong.
  local function add(key, value, quota, flags, hits)
    local check = checks[count + 1]
    if not check then
      check = { own_state = new_state(), state = false, key = key, quota = quota, mode = 0, chained = false, fits = false,
        hits = 0, gives_back = false, given_back = 0 }
      checks[count + 1] = check
    end
    local state, damage = state_of(key, value, check, quota)
    if not state then
      return nil, damage
    end
    local is_known = value and state.count == quota.count
    count = count + 1
    settle(state, quota, now_us)
    check.state, check.key, check.quota = state, key, quota
    check.mode, check.chained = flags % 4, flags % 8 >= 4
    check.gives_back = flags >= 8
    check.hits, check.given_back = check.gives_back and 0 or hits, hits
    return is_known
  end

  -- Decides the request at hand, unless something is wrong with it, and makes room for the next.
  local function finish(failed)
    if not failed then
      run(checks, count, false)
      if refuses(checks, count) then
        return_to_settled(checks, count)
        run(checks, count, true)
      end
      write_changed()
    end
    count = 0
  end

  -- A quota with a table for each of its rates, made when it is first needed.
  local makers, algorithms, full_quotas = { [0] = fixed_window, sliding_window, bucket }, {}, {}
  local function full_quota(args, short)
    if full_quotas[short] then
      return full_quotas[short]
    end
    local kind, count, horizon_us, at = unpack('<BBI7', args, short.at)
    local algorithm = algorithms[kind % 4] or makers[kind % 4]()
    algorithms[kind % 4] = algorithm
    local quota = { algorithm = algorithm, count = count, horizon_us = horizon_us, charges = kind % 8 >= 4,
      tracks_denials = kind >= 8 }
    for index = 1, count do
      quota[index], at = algorithm.rate(args, at)
    end
    full_quotas[short] = quota
    return quota
  end

  return add, finish, full_quota
end

