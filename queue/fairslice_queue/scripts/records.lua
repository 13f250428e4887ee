-- Put in front of every other script when it is loaded.
--
-- KEYS[1]  {fairslice}:meta. All other keys are made from its prefix; as they share the hash
--          tag, they live in the same slot of a cluster. Their names: ledger_keys.py.
-- ARGV[1]  the request, as JSON, unless a script says otherwise. Times in it are text, so that
--          no digit is lost.

local call = redis.call
local prefix = string.sub(KEYS[1], 1, -5)
local BOOKINGS, LOG, REGISTRY = prefix .. 'bookings', prefix .. 'log', prefix .. 'keys'
local LOG_LENGTH = 20000
local HOLDS = { Released = true, Running = true, Preempted = true }
-- Books in another form are rebuilt, like lost ones: BOOKS_FORM in ledger_keys.py.
local FORM = '2'

-- (Both are declared in front of all parts. `lending` names the pools of which something is
-- kept, as `|a100|h100|`; false: nobody has said yet.)
request = request or cjson.decode(ARGV[1])

local function answer(value)
  return { cjson.encode(value) }
end

-- Whether this call must be refused: books incomplete, or a leader that was replaced.
local function refusal(needs_books)
  local meta = call('HMGET', KEYS[1], 'ready', 'epoch', 'lending')
  lending = meta[3]
  if request.epoch then
    local epoch = tonumber(meta[2] or '0')
    if request.epoch < epoch then
      return { error = 'stale', epoch = epoch }
    end
  end
  if needs_books and meta[1] ~= FORM then
    return { error = 'incomplete' }
  end
  return nil
end

-- A booking in Redis is three lines of JSON: what changes (`live`), what scripts need of the
-- rest (`fixed`), and all of it as it was made. The last two are kept letter by letter.
local function parse(id, raw)
  local cut = string.find(raw, '\n', 1, true)
  local body = string.sub(raw, cut + 1)
  local fixed = string.sub(body, 1, string.find(body, '\n', 1, true) - 1)
  return { id = id, live = cjson.decode(string.sub(raw, 1, cut - 1)), fixed = cjson.decode(fixed), body = body }
end

local function read(id)
  local raw = call('HGET', BOOKINGS, id)
  return raw and parse(id, raw) or nil
end

local function format(b)
  return cjson.encode(b.live) .. '\n' .. b.body
end

local function option_of(b)
  if b.live.chosen >= 0 then
    return b.fixed.options[b.live.chosen + 1]
  end
  return nil
end

local function holding(b)
  return HOLDS[b.live.state] and b.live.chosen >= 0
end

local function offer_of(option, resource)
  return option.pool .. '|' .. option.product .. '|' .. resource
end

local function group_of(b)
  local group = b.fixed.group
  if group and group ~= '' then
    return b.fixed.team .. '|' .. group
  end
  return nil
end

-- What an option is waited for under: each of its offers; what DRA allocates has none.
local function lines_of(option)
  local lines = {}
  for resource in pairs(option.units) do
    lines[#lines + 1] = offer_of(option, resource)
  end
  if #lines == 0 then
    lines[1] = offer_of(option, '')
  end
  return lines
end

-- How a booking stands in the lines of its offers: a number, smaller first; nil if it stands in
-- nobody's way. Only what exists does (requests that come to nothing must not), and only until
-- units are kept for it.
local function stand_of(b)
  local live = b.live
  if live.state ~= 'Queued' or not live.bound or live.blocked or live.kept then
    return nil
  end
  return live.lifted and -1 or b.fixed.rank
end
