-- Put between records.lua and the scripts that follow the log.

-- A position in the log is `generation/entry`.
local function last_position()
  local last = call('XREVRANGE', LOG, '+', '-', 'COUNT', 1)[1]
  return (call('HGET', KEYS[1], 'generation') or '') .. '/' .. (last and last[1] or '0-0')
end

local function halves(entry)
  local cut = string.find(entry, '-', 1, true)
  return tonumber(string.sub(entry, 1, cut - 1)), tonumber(string.sub(entry, cut + 1))
end

local function after(a, c)
  local a1, a2 = halves(a)
  local c1, c2 = halves(c)
  return a1 > c1 or (a1 == c1 and a2 > c2)
end

-- The entry at a position, or nil where the log doesn't reach back to it.
local function entry_at(position)
  local cut = string.find(position, '/', 1, true)
  if not cut or string.sub(position, 1, cut - 1) ~= call('HGET', KEYS[1], 'generation') then
    return nil
  end
  local entry, first = string.sub(position, cut + 1), call('XRANGE', LOG, '-', '+', 'COUNT', 1)[1]
  if not first or after(first[1], entry) then
    return nil
  end
  return entry
end

-- Up to `most` entries after an entry: ids in the order of their last change, where that was.
local function changed_since(entry, most)
  local left, last, order = {}, {}, {}
  for _, item in ipairs(call('XRANGE', LOG, '(' .. entry, '+', 'COUNT', most)) do
    local id = item[2][2]
    last[id] = item[1]
    left[#left + 1] = { id, item[1] }
  end
  for _, item in ipairs(left) do
    if last[item[1]] == item[2] then
      order[#order + 1] = item
    end
  end
  return order
end
