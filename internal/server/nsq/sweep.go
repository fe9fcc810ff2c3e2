package nsq

import "time"

// sweepInterval is the interval at which the server looks for heartbeats that are due and for dead connections: one
// loop for all connections instead of timers for each.
const sweepInterval = 250 * time.Millisecond

// startBeats makes the next heartbeat due one interval from now; 0: no heartbeats.
func (c *conn) startBeats(interval time.Duration) {
	c.nextBeat.Store(c.srv.now() + int64(interval))
	c.beatEvery.Store(int64(interval))
}

// verdict says what the sweep does with a connection.
type verdict uint8

const (
	verdictNone     verdict = iota
	verdictBeat             // send a heartbeat
	verdictQuiet            // close: the client was silent for two heartbeat intervals
	verdictSlow             // close: a command was begun and not completed in time, or comes too slowly for its room
	verdictStranger         // close: there was no AUTH in time
)

// pulse is the state of a connection that the sweep judges, read without a lock. Times are in ns since the server's
// start; 0: not applicable now.
type pulse struct {
	now, lastByte, commandSince, nextBeat int64
	beatEvery, maxCommand, authBy         int64
	arrived, grace                        int64 // see conn.arrived and Options.LargeInputGrace
	waiting                               bool  // the reader waits for the server, not for the client
}

// judge decides what to do. It sends a heartbeat at most half a sweep early or late.
func (p pulse) judge() verdict {
	switch {
	case !p.waiting && p.commandSince != 0 && p.now-p.commandSince > p.maxCommand:
		return verdictSlow
	case !p.waiting && p.arrived != 0 && p.commandSince != 0 &&
		p.now-p.commandSince > p.grace+p.arrived*int64(time.Second)/minLargeInputRate:
		return verdictSlow
	case !p.waiting && p.authBy != 0 && p.now > p.authBy:
		return verdictStranger
	case p.beatEvery == 0:
		return verdictNone
	case !p.waiting && p.now-p.lastByte > 2*p.beatEvery:
		return verdictQuiet
	case p.now+int64(sweepInterval/2) >= p.nextBeat:
		return verdictBeat
	}
	return verdictNone
}

func (c *conn) pulse(now int64) pulse {
	return pulse{
		now:          now,
		waiting:      c.waiting.Load(), // before lastByte, which is set before waiting ends
		lastByte:     c.lastByte.Load(),
		commandSince: c.commandSince.Load(),
		nextBeat:     c.nextBeat.Load(),
		beatEvery:    c.beatEvery.Load(),
		authBy:       c.authBy.Load(),
		maxCommand:   int64(c.srv.settings().MaxCommandTime),
		arrived:      c.arrived.Load(),
		grace:        int64(c.srv.settings().LargeInputGrace),
	}
}

// sweep is the server's one goroutine for everything that time brings about rather than input: heartbeats, clients that
// are silent or slow, and messages in flight that time out. It ends when quit is closed. It holds Server.mu only while
// it collects the connections that are due.
func (s *Server) sweep() {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	var due []*conn
	for {
		select {
		case <-ticker.C:
		case <-s.quit:
			return
		}
		now, clock := s.now(), time.Now()
		due = due[:0]
		s.mu.Lock()
		for c := range s.conns {
			if c.pulse(now).judge() != verdictNone || c.flight.blocks() {
				due = append(due, c)
			}
			if s.opts.Auth != nil && c.lapsed(clock) && !c.renewing.Swap(true) {
				go c.renew()
			}
		}
		s.mu.Unlock()
		for i, c := range due {
			c.attend(now)
			due[i] = nil
		}
	}
}

// attend carries out the verdict on a connection, and expires its messages in flight.
func (c *conn) attend(now int64) {
	if c.flight.blocks() {
		c.flight.expire(now, c.set.Load().msgTimeout)
		c.flyOn()
	}
	switch c.pulse(now).judge() {
	case verdictSlow:
		c.srv.opts.Log.Info(
			"closing an NSQ connection: a command was begun and not completed in time", "client", c.remote)
		c.kill()
	case verdictStranger:
		if c.authBy.Swap(0) != 0 {
			c.countStranger(&c.srv.counts.strangerTime, "no AUTH within "+c.srv.settings().StrangerTime.String())
		}
		c.kill()
	case verdictQuiet:
		if acked, waits := c.out.acknowledged(); waits && acked > c.acked { // it has not got the heartbeats yet
			c.acked = acked
			c.lastByte.Store(now)
			return
		}
		c.srv.opts.Log.Info("closing an NSQ connection: its client answers no heartbeats", "client", c.remote)
		c.kill()
	case verdictBeat:
		c.nextBeat.Store(max(c.nextBeat.Load(), now-c.beatEvery.Load()) + c.beatEvery.Load())
		c.out.beat()
	}
}
