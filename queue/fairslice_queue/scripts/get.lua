-- Read one booking.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {id}
-- Answers  {}, then the booking's lines if there is one

local refused = refusal(true)
if refused then
  return answer(refused)
end
return { cjson.encode({}), call('HGET', BOOKINGS, request.id) or nil }
