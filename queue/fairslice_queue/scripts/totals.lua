-- Read all that is derived from bookings, and the bookings changed since a position, at one
-- moment.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {after}
-- Answers  {gone} or {}, then [key without prefix, flat content] for each, then as changes.lua

local refused = refusal(true)
if refused then
  return answer(refused)
end
local entry = entry_at(request.after)
if not entry then
  return answer({ gone = true })
end
local names = call('SMEMBERS', REGISTRY)
for _, name in ipairs({ 'deadlines', 'objects' }) do
  names[#names + 1] = prefix .. name
end
local reply = {}
for _, key in ipairs(names) do
  local kind = call('TYPE', key).ok
  reply[#reply + 1] = { string.sub(key, #prefix + 1),
    kind == 'hash' and call('HGETALL', key) or kind == 'zset' and call('ZRANGE', key, 0, -1, 'WITHSCORES') or {} }
end
local changed = {}
for _, item in ipairs(changed_since(entry, 100000)) do
  changed[#changed + 1] = item[2]
  changed[#changed + 1] = item[1]
  changed[#changed + 1] = call('HGET', BOOKINGS, item[1]) or ''
end
return { cjson.encode({}), reply, changed }
