package nsq

import (
	"testing"
	"time"
)

func TestJudge(t *testing.T) {
	const s = int64(time.Second)
	base := pulse{now: 100 * s, lastByte: 99 * s, nextBeat: 101 * s, beatEvery: 2 * s, maxCommand: 5 * s}
	with := func(f func(*pulse)) pulse { p := base; f(&p); return p }
	for name, x := range map[string]struct {
		p    pulse
		want verdict
	}{
		"nothing due":                {base, verdictNone},
		"beat due":                   {with(func(p *pulse) { p.nextBeat = p.now }), verdictBeat},
		"beat due within half sweep": {with(func(p *pulse) { p.nextBeat = p.now + int64(sweepInterval)/2 }), verdictBeat},
		"two intervals":              {with(func(p *pulse) { p.lastByte = p.now - 4*s }), verdictNone},
		"more than two intervals":    {with(func(p *pulse) { p.lastByte = p.now - 4*s - 1 }), verdictQuiet},
		"quiet, but we are busy":     {with(func(p *pulse) { p.lastByte, p.waiting = 0, true }), verdictNone},
		"beats while we are busy":    {with(func(p *pulse) { p.nextBeat, p.waiting = p.now, true }), verdictBeat},
		"no heartbeats":              {with(func(p *pulse) { p.lastByte, p.nextBeat, p.beatEvery = 0, 0, 0 }), verdictNone},
		"command in time":            {with(func(p *pulse) { p.commandSince = p.now - 5*s }), verdictNone},
		"command too slow":           {with(func(p *pulse) { p.commandSince = p.now - 5*s - 1 }), verdictSlow},
		"too slow, no heartbeats":    {with(func(p *pulse) { p.commandSince, p.beatEvery = 1, 0 }), verdictSlow},
		"large, at the least rate": {with(func(p *pulse) {
			p.commandSince, p.arrived, p.grace = p.now-4*s, 2*minLargeInputRate, 2*s
		}), verdictNone},
		"large, below the least rate": {with(func(p *pulse) {
			p.commandSince, p.arrived, p.grace = p.now-4*s-1, 2*minLargeInputRate, 2*s
		}), verdictSlow},
		"large, and waits for room": {with(func(p *pulse) {
			p.commandSince, p.arrived, p.waiting = 1, 1, true
		}), verdictNone},
		"large, beyond the command's time": {with(func(p *pulse) {
			p.commandSince, p.arrived, p.grace = p.now-5*s-1, 1<<30, 2*s
		}), verdictSlow},
		"AUTH in time":            {with(func(p *pulse) { p.authBy = p.now }), verdictNone},
		"no AUTH":                 {with(func(p *pulse) { p.authBy, p.beatEvery = p.now-1, 0 }), verdictStranger},
		"no AUTH yet, but we ask": {with(func(p *pulse) { p.authBy, p.waiting = p.now-1, true }), verdictNone},
	} {
		if got := x.p.judge(); got != x.want {
			t.Errorf("%s: %d, want %d", name, got, x.want)
		}
	}
}
