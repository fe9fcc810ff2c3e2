package channel

import (
	"testing"
	"time"

	"penstock/internal/node/message"
	"penstock/segment"
)

// changing is a lease and a partition that change.
type changing struct {
	Partition
	now, began int64
	serves     segment.Epoch
}

func (c *changing) Leased() bool                      { return true }
func (c *changing) LeaseLeft() time.Duration          { return time.Hour }
func (c *changing) Now() int64                        { return c.now }
func (c *changing) Lapsed(since int64) bool           { return since < c.began }
func (c *changing) ServesIn(epoch segment.Epoch) bool { return epoch == c.serves }

// What waits in a sink is handed over while this node serves the partition in the same epoch, and had its lease all the
// time since.
//
// B57.
func TestReign(t *testing.T) {
	for name, change := range map[string]func(*changing){
		"nothing happens":           func(*changing) {},
		"another node leads":        func(c *changing) { c.serves = 0 },
		"this node leads anew":      func(c *changing) { c.serves = 8 },
		"the lease lapsed before":   func(c *changing) { c.began = 50 },
		"the lease lapsed meantime": func(c *changing) { c.began = 150 },
		"the consumer has ended":    func(*changing) {},
		"its time is over":          func(c *changing) { c.now = 240 },
	} {
		c := &changing{now: 100, serves: 7}
		k := &Consumer{timeout: 160}
		d := message.Delivery{Number: 5}
		k.limit(&d, &reign{c, c, 7})
		if d.Until.Passed() || d.Until.Serial != 5 || !k.held.Load() {
			t.Errorf("%s: %+v", name, d.Until)
		}
		c.now = 200
		if change(c); name == "the consumer has ended" {
			k.permits.end(0)
		}
		if want := name != "nothing happens" && name != "the lease lapsed before"; d.Until.Passed() != want {
			t.Errorf("%s: passed %v", name, d.Until.Passed())
		}
	}
}
