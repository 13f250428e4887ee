-- Put in front of all else for `book`: what most requests come to, with little effort.
--
-- Nothing is known of the request, none of its team's unfinished ones is over, and an option is
-- free that the caps allow and nobody waits for. Whatever else may be is left to book.lua. The
-- arguments are those of book_request.lua.

asked = cmsgpack.unpack(ARGV[1])

local function book_at_once()
  local call, id, team, object, pods, group = redis.call, asked[1], asked[2], asked[14], asked[19], asked[20]
  if not asked[5] or pods <= 0 then
    return nil
  end
  local prefix = string.sub(KEYS[1], 1, -5)
  local bookings, objects, tentative = prefix .. 'bookings', prefix .. 'objects', prefix .. 'tentative:' .. team
  local meta, unfinished = call('HMGET', KEYS[1], 'ready', 'lending'), call('ZCARD', tentative)
  if meta[1] ~= '2' or unfinished >= asked[9]
    or (unfinished > 0 and call('ZRANGEBYSCORE', tentative, '-inf', asked[3], 'LIMIT', 0, 1)[1])
    or call('HEXISTS', bookings, id) == 1
    or (object ~= '' and call('HEXISTS', objects, object) == 1)
    or (group ~= '' and call('EXISTS', prefix .. 'lingering:' .. team .. '|' .. group) == 1) then
    return nil
  end

  local holdings = prefix .. 'held:' .. team
  local of_class, of_user = 'c|' .. asked[16], 'u|' .. asked[17]
  local function over(used, more, cap)
    return cap and used + more > cap
  end

  for index, option in ipairs(asked[24]) do
    local pool, resource = option[1], option[3]
    local of_pool, of_resource = 'p|' .. pool, 'r|' .. resource
    local offer, units, milli = pool .. '|' .. option[2] .. '|' .. resource, option[4] * pods, option[5] * pods
    local used = call('HMGET', holdings, of_pool, of_class, of_user, of_resource)
    local p, c, u, r = tonumber(used[1] or 0), tonumber(used[2] or 0), tonumber(used[3] or 0), tonumber(used[4] or 0)
    local borrows = over(p, milli, option[8])
    if resource == '' or units <= 0 or milli <= 0 or (borrows and not meta[2])
      or (meta[2] and string.find(meta[2], '|' .. pool .. '|', 1, true)) then
      return nil
    end
    local capped = over(p, milli, option[6]) or over(r, units, option[7])
      or over(c, milli, asked[22]) or over(u, milli, asked[23])
    if capped and group ~= '' then
      return nil
    end
    local most = borrows and not asked[8] and '+inf' or asked[18]
    if not capped and call('ZCOUNT', prefix .. 'waiting:' .. offer, '-inf', most) == 0 then
      local free, node, place = prefix .. 'free:' .. offer, nil, '{}'
      if asked[7] then
        local found = call('ZRANGEBYSCORE', free, units, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
        node = found[1]
        if node and string.find(node, '[^%w.-]') or not node and pods > 1 then
          return nil
        elseif node then
          place = '{"' .. node .. '":' .. pods .. '}'
          call('ZADD', free, found[2] - units, node)
          local placed = prefix .. 'placed:' .. offer
          if call('HINCRBY', placed, node, units) == units then
            call('SADD', prefix .. 'keys', placed)
          end
        end
      end
      if node or not asked[7] then
        call('HSET', holdings, of_pool, p + milli, of_class, c + milli, of_user, u + milli, of_resource, r + units)
        call('ZADD', prefix .. 'deadlines', asked[4], id)
        call('ZADD', tentative, asked[4], id)
        if p == 0 or unfinished == 0 then
          call('SADD', prefix .. 'keys', holdings, tentative)
        end
        if object ~= '' then
          call('HSET', objects, object, id)
        end
        if group ~= '' then
          local members = prefix .. 'group:' .. team .. '|' .. group
          call('HSET', members, id, asked[21])
          call('SADD', prefix .. 'keys', members)
        end
        local live = '{"state":"Released","chosen":' .. index - 1 .. ',"place":' .. place .. ',' .. ARGV[2]
        call('HSET', bookings, id, live .. '\n' .. ARGV[3])
        call('XADD', prefix .. 'log', 'MAXLEN', '~', 20000, '*', 'id', id)
        return { '+', index - 1, node or '' }
      end
    end
  end
  return nil
end

do
  local reply = book_at_once()
  if reply then
    return reply
  end
end
