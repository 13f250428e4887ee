-- Put in front of records.lua for `book` and `trial`: what is asked, as msgpack, since taking
-- JSON apart costs more than booking.
--
-- ARGV[1]  a list: ledger_asking.py has its fields
-- ARGV[2]  the rest of the `live` line, behind state, chosen and place
-- ARGV[3]  the two other lines of the booking
-- ARGV[4]  the same as it is to wait; empty: no different
-- ARGV[5]  the caps as JSON

asked = asked or cmsgpack.unpack(ARGV[1])
request = {
  id = asked[1], team = asked[2], now = asked[3], expires = asked[4], start = asked[5],
  overflow_queue = asked[6], capacity = asked[7], passes = asked[8], max_tentative = asked[9],
  kind = asked[10], namespace = asked[11], name = asked[12], generate_name = asked[13],
  object = asked[14], ask = asked[15], limits = cjson.decode(ARGV[5]),
  record = '{"state":"Queued","chosen":-1,' .. ARGV[2] .. '\n' .. ARGV[3],
  waiting = ARGV[4] ~= '' and '{"state":"Queued","chosen":-1,' .. ARGV[2] .. '\n' .. ARGV[4],
}
