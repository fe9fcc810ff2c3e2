package core

// partShare is how much of a topic a node leads.
type partShare struct{ here, all uint64 }

// of returns the share's part of a limit that holds for the whole channel, rounded up.
func (s partShare) of(limit uint64) uint64 { return (limit*s.here + s.all - 1) / s.all }

// Settings returns what is in force. Nobody changes it in place.
func (c *Channel) Settings() ChannelSettings { return c.settings }

// configure takes up settings that are newer than what the channel has, and what part of the topic is here.
func (c *Channel) configure(ev *Event) error {
	if s := ev.Settings; s != nil && s.Version > c.settings.Version {
		if err := s.Validate(); err != nil {
			return err
		}
		c.share = makeShare(ev)
		c.adopt(*s)
		return nil
	}
	c.share = makeShare(ev)
	c.limit()
	return nil
}

func makeShare(ev *Event) partShare {
	if ev.SharePartsHere == 0 || ev.SharePartsHere >= ev.PartsAll {
		return partShare{1, 1}
	}
	return partShare{uint64(ev.SharePartsHere), uint64(ev.PartsAll)}
}

// adopt puts settings in force.
func (c *Channel) adopt(s ChannelSettings) {
	old := c.settings
	c.settings = s
	c.limit()
	c.special = c.isSpecial()
	if old.Order != s.Order || s.Order == OrderKey && old.Key() != s.Key() {
		c.reorder()
	}
	for _, p := range c.parts {
		if p != nil {
			c.retryDoomed(p, true)
			c.passed(p) // what these settings leave out, a leader that does not know them would deliver
		}
	}
}

// limit computes what this node may do of what the whole channel may.
func (c *Channel) limit() {
	if c.share.all == 0 {
		c.share = partShare{1, 1}
	}
	c.maxInFlight = c.cfg.MaxInFlight
	if n := int(c.share.of(uint64(c.settings.MaxInFlight))); n > 0 && (c.maxInFlight <= 0 || n < c.maxInFlight) {
		c.maxInFlight = n
	}
	c.rate.set(uint64(c.settings.RatePerSecond), c.share, c.nowNs)
}

// isSpecial says whether offers and redeliveries must look at more than the client whose turn it is.
func (c *Channel) isSpecial() bool {
	s := &c.settings
	if c.choosy > 0 || s.Order != OrderNone || s.MaxAttempts != 0 || s.RatePerSecond != 0 || s.SampleRate != 0 {
		return true
	}
	for _, p := range c.parts {
		if p != nil && len(p.remembered) > 0 {
			return true
		}
	}
	return false
}

// sampleSalt makes the channel's sample another than those of its clients.
const sampleSalt = 0x5851f42d4c957f2d

// outOfSample says whether the channel's own sample leaves the message out.
func (c *Channel) outOfSample(id ID) bool {
	rate := int(c.settings.SampleRate)
	return rate != 0 && int(mix(uint64(id)^c.cfg.SampleSeed^sampleSalt)%100) >= rate
}

// redeliverSpecial chooses what comes again first, and to whom; no client: res says why.
func (c *Channel) redeliverSpecial(res *Result) (*entry, *channelClient) {
	if !c.rate.allows(c.nowNs) {
		res.Decision, res.Why = Hold, HoldRate
		return nil, nil
	}
	for e, n := c.queue.first, maxChoiceScan; e != nil && n > 0; e, n = e.next, n-1 {
		cl := c.choose(e.tag, e.id.Partition())
		if c.choosy > 0 && !e.told {
			cl = c.chooseAny(e.id.Partition())
			res.Unsure = cl != nil
		}
		if cl != nil {
			return e, cl
		}
	}
	res.Decision, res.Why = Hold, HoldNoCredit
	return nil, nil
}

// maxChoiceScan is how many messages of the redelivery queue are looked at for one that a client may take: more than a
// client that is gone leaves there, or what it left would hold back what others may have.
const maxChoiceScan = 4096

// choose returns the client whose turn it is to take a message of the tag and the partition: one of the same tag, or
// one without a tag if nobody with the tag is subscribed; nil: none of them has credit. Some client has.
func (c *Channel) choose(tag uint64, part uint32) *channelClient {
	if c.choosy == 0 {
		return c.ring
	}
	var untagged *channelClient
	for cl := c.ring; ; {
		wants := cl.only == 0 || cl.only-1 == part
		if wants && cl.tag == tag && tag != 0 {
			return cl
		}
		if wants && cl.tag == 0 && untagged == nil {
			untagged = cl
		}
		if cl = cl.ringNext; cl == c.ring {
			break
		}
	}
	if untagged != nil && tag != 0 && c.awaited(tag, part) {
		return nil
	}
	return untagged
}

// chooseAny is choose for a message whose tag is not known: it was recovered from the log, or waited for its time from
// the beginning.
func (c *Channel) chooseAny(part uint32) *channelClient {
	for cl := c.ring; ; {
		if cl.only == 0 || cl.only-1 == part {
			return cl
		}
		if cl = cl.ringNext; cl == c.ring {
			return nil
		}
	}
}

// learnTag takes a delivery back that is not for its client.
func (c *Channel) learnTag(ev *Event, res *Result) {
	e := c.entries.get(ev.ID)
	if e == nil || e.state != entryInFlight {
		res.Decision, res.Why = Hold, HoldEmpty
		return
	}
	e.tag, e.told = ev.Tag, true
	cl := e.client
	if cl.tag == ev.Tag || cl.tag == 0 && !c.awaited(ev.Tag, e.id.Partition()) {
		res.Decision = Deliver
		return
	}
	res.Decision, res.Why = Hold, HoldNoCredit
	e.attempts--
	cl.messageCount--
	c.land(e)
	c.enqueue(e, true)
}

// awaited says whether a client that will take messages of the tag and the partition is subscribed, with credit or
// without. One that stopped never will.
func (c *Channel) awaited(tag uint64, part uint32) bool {
	for _, cl := range c.order {
		if cl.tag == tag && !cl.stopped && (cl.only == 0 || cl.only-1 == part) {
			return true
		}
	}
	return false
}

// lastInRing makes a client that is not the next one to serve the last one.
func (c *Channel) lastInRing(cl *channelClient) {
	cl.ringPrev.ringNext, cl.ringNext.ringPrev = cl.ringNext, cl.ringPrev
	cl.ringPrev, cl.ringNext = c.ring.ringPrev, c.ring
	cl.ringPrev.ringNext, cl.ringNext.ringPrev = cl, cl
}

// RateBurstMs is how far ahead of an even pace deliveries may be: a wake-up is late by a millisecond or
// two, and what it is late by is made up for.
const RateBurstMs = 10

// rate spaces deliveries evenly. The time of the next one counts in ns and 1/65536 ns, so that the largest
// rates are met, too.
type rate struct {
	intervalFx uint64 // 1/65536 ns between two deliveries; 0: no limit
	nextNs     int64
	fraction   uint64
	waiting    bool // a delivery was held
}

const rateFractionBits = 16

func (r *rate) set(perSecond uint64, s partShare, nowNs int64) {
	if perSecond == 0 {
		*r = rate{}
		return
	}
	r.intervalFx = max(1, (1e9<<rateFractionBits)*s.all/(perSecond*s.here))
	r.nextNs = min(r.nextNs, nowNs+int64(r.intervalFx>>rateFractionBits))
}

func (r *rate) readyNs() int64 { return r.nextNs - RateBurstMs*nsPerMs }

// dueMs is when a held delivery may be asked for again, unix ms.
func (r *rate) dueMs() int64 { return (r.readyNs() + nsPerMs - 1) / nsPerMs }

func (r *rate) allows(nowNs int64) bool {
	r.waiting = r.intervalFx != 0 && r.readyNs() > nowNs
	return !r.waiting
}

func (r *rate) tick(nowNs int64) { r.waiting = r.waiting && r.readyNs() > nowNs }

func (r *rate) spend(nowNs int64) {
	if r.nextNs < nowNs {
		r.nextNs, r.fraction = nowNs, 0
	}
	r.fraction += r.intervalFx & (1<<rateFractionBits - 1)
	r.nextNs += int64(r.intervalFx>>rateFractionBits) + int64(r.fraction>>rateFractionBits)
	r.fraction &= 1<<rateFractionBits - 1
}
