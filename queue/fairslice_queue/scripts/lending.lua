-- Put between records.lua and books.lua: what teams keep of their guarantees.
--
-- lending:POOL has `capacity`, `used` by all, `kept` (what those who keep something hold less
-- than that), and for each of these `k|TEAM`, what it keeps, and `h|TEAM`, what it holds.

local function lending_key(pool)
  if lending and string.find(lending, '|' .. pool .. '|', 1, true) then
    return prefix .. 'lending:' .. pool
  end
  return nil
end

-- What a team holds less than it keeps, once it holds `more`.
local function unmet(key, team, more)
  local own = call('HMGET', key, 'k|' .. team, 'h|' .. team)
  return own[1] and math.max(0, tonumber(own[1]) - tonumber(own[2]) - more) or 0
end

-- Follow what a team's holdings change by.
local function commit_lending(team, fields)
  if not lending or lending == '|' then
    return
  end
  local pools = {}
  for field, delta in pairs(fields) do
    local kind, pool = string.sub(field, 1, 2), string.sub(field, 3)
    if kind == 'p|' or kind == 's|' then
      pools[pool] = (pools[pool] or 0) + delta
    end
  end
  for pool, delta in pairs(pools) do
    local key = delta ~= 0 and lending_key(pool)
    if key then
      local more = unmet(key, team, delta) - unmet(key, team, 0)
      call('HINCRBY', key, 'used', delta)
      if more ~= 0 then
        call('HINCRBY', key, 'kept', more)
      end
      if call('HEXISTS', key, 'k|' .. team) == 1 then
        call('HINCRBY', key, 'h|' .. team, delta)
      end
    end
  end
end
