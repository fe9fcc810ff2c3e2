package client

import (
	"math/rand/v2"
	"time"

	"penstock/netproto"
)

// minBusyDelay and maxBusyDelay are the range of the longest pause after a node has said that it is busy.
const (
	minBusyDelay = time.Second
	maxBusyDelay = 30 * time.Second
)

// busyNode is what a Client knows of an address whose node has said that it is busy, although the node is forgotten
// while others are asked.
type busyNode struct {
	err   error
	times int       // in a row
	until time.Time // it is not asked again before
}

// busyDelay is the pause before the next attempt after a node has said so many times in a row that it is busy. It is
// random as a whole: all the others that the node has refused wait, too, and must not come back together.
func (o *Options) busyDelay(times int) time.Duration {
	return o.MinDelay + rand.N(min(minBusyDelay<<min(max(times-1, 0), 16), max(maxBusyDelay, o.MaxDelay)))
}

// isBusy notes what an attempt to connect has told of the address, and returns how long the node is to be left alone.
func (c *Client) isBusy(address string, err error) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !netproto.IsBusy(err) {
		delete(c.busy, address)
		return 0
	}
	if len(c.busy) >= maxToldCount {
		clear(c.busy)
	}
	b := c.busy[address]
	b.times++
	pause := c.o.busyDelay(b.times)
	b.err, b.until = err, time.Now().Add(pause)
	c.busy[address] = b
	return pause
}

// busyFor says how much longer the address is to be left alone, and why.
func (c *Client) busyFor(address string) (time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.busy[address]
	return time.Until(b.until), b.err
}
