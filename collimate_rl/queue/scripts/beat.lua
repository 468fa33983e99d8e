-- beat: a supervisor (or janitor) lives; with a node's name, that node's heartbeat beside it.
--
-- queue     the queue's name
-- node      the node's name, or '' for the clock alone
-- heartbeat JSON: what the node tells of itself (templates, slots, …)
-- obstacle  why the node takes no work just now, for people; '' when it does
--
-- Replies {settled 0/1, ms without a gap}.
-- Writes clock, where the last obstacle of all nodes is kept; with a node: col:node:node and nodes.
local A, bad = args('queue:name node:bytes heartbeat:bytes obstacle:bytes')
if bad then return bad end
if A.node ~= '' and not kinds.name(A.node) then return redis.error_reply('COLARG node is no name') end
if #A.obstacle > 1024 then return redis.error_reply('COLARG the obstacle is too long') end
local clock, nodes, t = 'col:clock:' .. A.queue, 'col:nodes:' .. A.queue, now()
local wrong = mistyped({ clock, 'hash', nodes, 'zset', 'col:node:' .. A.node, 'string' })
if wrong then return wrong end
local v = redis.call('HMGET', clock, 'last', 'since')
local last, since = tonumber(v[1]), tonumber(v[2])
-- A clock that was set back is a gap too.
if not last or not since or t - last > T.gap_ms or t < last then since = t end
redis.call('HSET', clock, 'last', int(t), 'since', int(since))
redis.call('PEXPIRE', clock, int(T.keep_ms))
if A.node ~= '' then
  redis.call('SET', 'col:node:' .. A.node, A.heartbeat, 'PX', int(T.alive_ms))
  redis.call('ZREMRANGEBYSCORE', nodes, '-inf', int(t))
  redis.call('ZADD', nodes, int(t + T.alive_ms), A.node)
  redis.call('PEXPIRE', nodes, int(T.keep_ms))
  if A.obstacle ~= '' then
    redis.call('HSET', clock, 'obstacle', A.obstacle, 'obstacle_node', A.node, 'obstacle_at', int(t))
  end
end
return { settled(A.queue, t) and 1 or 0, t - since }
