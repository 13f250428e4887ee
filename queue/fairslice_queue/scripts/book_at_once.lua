-- Put in front of all else for `book`: what most requests come to, with little effort.
--
-- Nothing is known of the request, none of its team's unfinished ones is over, and an option is
-- free that the caps allow and nobody waits for. Whatever else may be is left to book.lua. The
-- arguments are those of book_request.lua; what is written, books.lua writes for all other cases.

asked = cmsgpack.unpack(ARGV[1])

local function book_at_once()
  local call, prefix = redis.call, string.sub(KEYS[1], 1, -5)
  local id, now, expires, object = ARGV[6], ARGV[7], ARGV[8], ARGV[10]
  local team, starts, _, needs_room, passes, most_unfinished, _, _, _, _, class, user, rank, pods,
    group, revision, class_cap, user_cap, options = unpack(asked, 1, 19)
  if not starts or pods <= 0 then
    return nil
  end
  local bookings, objects, registry = prefix .. 'bookings', prefix .. 'objects', prefix .. 'keys'
  local tentative, holdings = prefix .. 'tentative:' .. team, prefix .. 'held:' .. team
  local meta, unfinished = call('HMGET', KEYS[1], 'ready', 'lending'), call('ZCARD', tentative)
  local form, lending = meta[1], meta[2]
  if form ~= '2' or unfinished >= most_unfinished
    or (unfinished > 0 and call('ZRANGEBYSCORE', tentative, '-inf', now, 'LIMIT', 0, 1)[1])
    or (group ~= '' and call('EXISTS', prefix .. 'lingering:' .. team .. '|' .. group) == 1) then
    return nil
  end

  local of_class, of_user = 'c|' .. class, 'u|' .. user
  local function over(used, more, cap)
    return cap and used + more > cap
  end

  for index, option in ipairs(options) do
    local pool, product, resource, units, milli, pool_cap, resource_cap, right = unpack(option, 1, 8)
    units, milli = units * pods, milli * pods
    local offer = pool .. '|' .. product .. '|' .. resource
    local of_pool, of_resource = 'p|' .. pool, 'r|' .. resource
    local used = call('HMGET', holdings, of_pool, of_class, of_user, of_resource)
    local p, c = tonumber(used[1] or 0), tonumber(used[2] or 0)
    local u, r = tonumber(used[3] or 0), tonumber(used[4] or 0)
    local borrows = over(p, milli, right)
    -- Several resources or none; a pool of which something may be kept.
    if resource == '' or units <= 0 or milli <= 0 or (borrows and not lending)
      or (lending and string.find(lending, '|' .. pool .. '|', 1, true)) then
      return nil
    end
    local capped = over(p, milli, pool_cap) or over(c, milli, class_cap)
      or over(u, milli, user_cap) or over(r, units, resource_cap)
    if capped and group ~= '' then
      return nil -- it may be surge
    end
    local before = borrows and not passes and '+inf' or rank
    if not capped and call('ZCOUNT', prefix .. 'waiting:' .. offer, '-inf', before) == 0 then
      local free, node, left, place = prefix .. 'free:' .. offer, nil, nil, '{}'
      if needs_room then
        node, left = unpack(call('ZRANGEBYSCORE', free, units, '+inf', 'WITHSCORES', 'LIMIT', 0, 1))
        if node and string.find(node, '[^%w.-]') or not node and pods > 1 then
          return nil -- a name that JSON may have to escape; pods that may fit on several nodes
        end
      end
      if node or not needs_room then
        -- It may have come before, under its id or its name.
        if object ~= '' and call('HSETNX', objects, object, id) == 0 then
          return nil
        end
        if node then
          place = '{"' .. node .. '":' .. pods .. '}'
        end
        local live = '{"state":"Released","chosen":' .. index - 1 .. ',"place":' .. place .. ',' .. ARGV[2]
        if call('HSETNX', bookings, id, live .. '\n' .. ARGV[3]) == 0 then
          if object ~= '' then
            call('HDEL', objects, object)
          end
          return nil
        end
        if node then
          call('ZADD', free, left - units, node)
          if call('HINCRBY', prefix .. 'placed:' .. offer, node, units) == units then
            call('SADD', registry, prefix .. 'placed:' .. offer)
          end
        end
        call('HSET', holdings, of_pool, p + milli, of_class, c + milli, of_user, u + milli,
          of_resource, r + units)
        call('ZADD', prefix .. 'deadlines', expires, id)
        call('ZADD', tentative, expires, id)
        if p == 0 or unfinished == 0 then
          call('SADD', registry, holdings, tentative)
        end
        if group ~= '' then
          local members = prefix .. 'group:' .. team .. '|' .. group
          call('HSET', members, id, revision)
          call('SADD', registry, members)
        end
        call('XADD', prefix .. 'log', 'MAXLEN', '~', 20000, '*', 'id', id)
        return { '+' .. index - 1 .. ' ' .. (node or '') }
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
