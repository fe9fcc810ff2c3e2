package fold

import "penstock/segment"

// ApplyBody is ApplyBodyAt for a body that carries no messages.
func (c *Cursors) ApplyBody(body []byte, end segment.MsgID) error { return c.ApplyBodyAt(body, end, 0) }

// Apply is ApplyAt for an entry that carries no messages.
func (c *Cursors) Apply(ct *Control, end segment.MsgID) error { return c.ApplyAt(ct, end, 0) }
