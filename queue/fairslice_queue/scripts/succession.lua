-- Put behind books.lua: what ended pods leave to the next of their group.

-- Give up what pods of the group left behind for this one, as many as it needs: a pod with a
-- name of its own (StatefulSet) follows its namesake only, one without follows any. Returns the
-- milli-GPU given up by pool.
local function take_over(b)
  local given, group, left = {}, group_of(b), b.live.pods
  if not group then
    return given
  end
  for _, id in ipairs(call('ZRANGE', prefix .. 'lingering:' .. group, 0, -1)) do
    local old, name = left > 0 and find(id), b.fixed.ref.name or ''
    if old and old.live.linger and (name == '' or name == old.live.name) then
      local option = option_of(old)
      given[option.pool] = (given[option.pool] or 0) + option.milli * old.live.pods
      left = left - old.live.pods
      change(old, nil)
    end
  end
  return given
end
