-- Keep what would have happened, were more enforced; the oldest entries make room.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {}
-- ARGV[2…] the entries

for i = 2, #ARGV do
  call('XADD', prefix .. 'audit', 'MAXLEN', '~', 10000, '*', 'entry', ARGV[i])
end
return answer(true)
