-- Close the books and empty them, but for tentative bookings: their objects may be on the way.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, generation}: a new name, which makes every old log position unknown

local refused = refusal(false)
if refused then
  return answer(refused)
end
local tentative = {}
for _, id in ipairs(call('ZRANGE', prefix .. 'deadlines', 0, -1)) do
  -- (What another version of this program wrote may have another form.)
  local _, cuts = string.gsub(call('HGET', BOOKINGS, id) or '', '\n', '')
  if cuts == 2 then
    tentative[#tentative + 1] = find(id)
  end
end
call('HSET', KEYS[1], 'ready', '0', 'building', request.generation, 'epoch', string.format('%.0f', request.epoch))
call('HDEL', KEYS[1], 'lending')
lending = nil
for _, key in ipairs(call('SMEMBERS', REGISTRY)) do
  call('UNLINK', key)
end
call('UNLINK', REGISTRY, BOOKINGS, LOG, prefix .. 'deadlines', prefix .. 'objects', prefix .. 'offers', prefix .. 'offered')
for _, b in ipairs(tentative) do
  change(nil, b)
end
commit(true)
-- A log is never empty, so that every position in it can be told from a lost one.
call('XADD', LOG, '*', 'rebuilt', request.generation)
return answer(true)
