-- Read what changed after a position.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {after, most}
-- Answers  {gone} or {generation}, then for each booking changed: the log entry, the id, and the
--          booking's lines as it now is (empty: it ended)

local refused = refusal(true)
if refused then
  return answer(refused)
end
local entry = entry_at(request.after)
if not entry then
  return answer({ gone = true })
end
local reply = answer({ generation = call('HGET', KEYS[1], 'generation') })
for _, item in ipairs(changed_since(entry, request.most)) do
  reply[#reply + 1] = item[2]
  reply[#reply + 1] = item[1]
  reply[#reply + 1] = call('HGET', BOOKINGS, item[1]) or ''
end
return reply
