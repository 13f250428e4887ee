-- Put in front of records.lua for `book` and `trial`: what is asked, as msgpack, since taking
-- JSON apart costs more than booking.
--
-- ARGV[1]  a list: ledger_asking.py has its fields
-- ARGV[2]  the rest of the `live` line, behind state, chosen and place
-- ARGV[3]  the two other lines of the booking
-- ARGV[4]  the same as it is to wait; empty: no different
-- ARGV[5]  the caps as JSON
-- ARGV[6]  the booking's id
-- ARGV[7]  the time
-- ARGV[8]  the time until which the booking is tentative
-- ARGV[9]  the object's name; empty while it has none
-- ARGV[10] `Kind namespace/name`; empty while there is no name

asked = asked or cmsgpack.unpack(ARGV[1])
request = {
  id = ARGV[6], now = ARGV[7], expires = ARGV[8], name = ARGV[9], object = ARGV[10],
  team = asked[1], start = asked[2], overflow_queue = asked[3], capacity = asked[4],
  passes = asked[5], max_tentative = asked[6], kind = asked[7], namespace = asked[8],
  generate_name = asked[9], ask = asked[10], limits = cjson.decode(ARGV[5]),
  record = '{"state":"Queued","chosen":-1,' .. ARGV[2] .. '\n' .. ARGV[3],
  waiting = ARGV[4] ~= '' and '{"state":"Queued","chosen":-1,' .. ARGV[2] .. '\n' .. ARGV[4],
}
