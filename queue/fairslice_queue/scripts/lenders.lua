-- Put behind lending.lua, before the scripts that publish who keeps what.

-- pools: pool → {capacity, kept: team → milli-GPU}, of all pools where anybody keeps anything.
local function publish_lending(pools)
  for pool in string.gmatch(lending or '', '[^|]+') do
    local key = prefix .. 'lending:' .. pool
    call('DEL', key)
    call('SREM', REGISTRY, key)
  end
  lending = '|'
  for pool in pairs(pools) do
    lending = lending .. pool .. '|'
  end
  call('HSET', KEYS[1], 'lending', lending)
  if not next(pools) then
    return
  end
  local used, by_team = {}, {}
  local start = #prefix + #'held:' + 1
  for _, key in ipairs(call('SMEMBERS', REGISTRY)) do
    if string.sub(key, #prefix + 1, start - 1) == 'held:' then
      local team = string.sub(key, start)
      local flat = call('HGETALL', key)
      for i = 1, #flat, 2 do
        local kind, pool = string.sub(flat[i], 1, 2), string.sub(flat[i], 3)
        if (kind == 'p|' or kind == 's|') and pools[pool] then
          local milli = tonumber(flat[i + 1])
          used[pool] = (used[pool] or 0) + milli
          by_team[pool .. '|' .. team] = (by_team[pool .. '|' .. team] or 0) + milli
        end
      end
    end
  end
  for pool, told in pairs(pools) do
    local key, kept = prefix .. 'lending:' .. pool, 0
    for team, milli in pairs(told.kept) do
      local has = by_team[pool .. '|' .. team] or 0
      kept = kept + math.max(0, milli - has)
      call('HSET', key, 'k|' .. team, milli, 'h|' .. team, has)
    end
    call('HSET', key, 'capacity', told.capacity, 'used', used[pool] or 0, 'kept', kept)
    call('SADD', REGISTRY, key)
  end
end
