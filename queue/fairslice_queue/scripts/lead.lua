-- Begin a leader's reign.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {at_least}: by the clock, so that epochs grow across a loss of Redis as well
-- Answers  the epoch

local epoch = math.max(tonumber(call('HGET', KEYS[1], 'epoch') or '0') + 1, request.at_least)
call('HSET', KEYS[1], 'epoch', string.format('%.0f', epoch))
return answer({ epoch = string.format('%.0f', epoch) })
