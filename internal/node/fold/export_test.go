package fold

import "slices"

// Clone returns a deep copy. It shares only what is never changed, such as the rules of settings.
func (c *Cursors) Clone() *Cursors {
	out := *c
	out.Deferred, out.carried = slices.Clone(c.Deferred), slices.Clone(c.carried)
	out.producers.all, out.producers.ids = slices.Clone(c.producers.all), nil
	out.channels = make([]*Cursor, len(c.channels))
	for i, ch := range c.channels {
		out.channels[i] = ch.Clone()
	}
	return &out
}
