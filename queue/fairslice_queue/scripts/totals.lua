-- Read some of what is derived from bookings, and the bookings changed since a position, at one
-- moment.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {after, names: keys without prefix}
-- Answers  {gone} or {sequence}, the flat content of each key, then [id, the booking's lines
--          (empty: it ended)] in turn

local refused = refusal(true)
if refused then
  return answer(refused)
end
local entry = entry_at(request.after)
if not entry then
  return answer({ gone = true })
end
local contents = {}
for i, name in ipairs(request.names) do
  local kind = call('TYPE', prefix .. name).ok
  contents[i] = kind == 'hash' and call('HGETALL', prefix .. name)
    or kind == 'zset' and call('ZRANGE', prefix .. name, 0, -1, 'WITHSCORES') or {}
end
local changed = {}
for _, item in ipairs(changed_since(entry, LOG_LENGTH * 2)) do
  changed[#changed + 1] = item[1]
  changed[#changed + 1] = call('HGET', BOOKINGS, item[1]) or ''
end
return { cjson.encode({ sequence = last_position() }), contents, changed }
