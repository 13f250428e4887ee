-- Put behind records.lua: what booking and releasing answer.

local function outcome_of(b)
  local live = b.live
  local result = {
    id = b.id, chosen = live.chosen, place = live.place or {}, surge = live.surge or false,
    verdict = holding(b) and 'booked' or 'queued',
  }
  if not holding(b) then
    result.cause, result.subject = live.cause or '', live.subject or ''
    result.used, result.limit, result.asked = live.used or 0, live.limit or 0, live.asked or 0
  end
  return result
end

local function denied(id, cap)
  return {
    verdict = 'denied', id = id, cause = cap.cause, subject = cap.subject or '',
    used = cap.used or 0, limit = cap.limit or 0, asked = cap.asked or 0,
  }
end
