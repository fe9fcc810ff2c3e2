package main

// writePath shows a group commit on three nodes: messages that wait become batches, the batches one group, the group
// one write and one flush on each node, and the OK comes last.
func writePath() string {
	c := newCanvas(940, 440, "Publishers send messages to the leader; a group of batches is written and flushed once on "+
		"each of three nodes before the publishers get their OK")
	leader(c)
	publishers(c)
	for i, name := range []string{"node b", "node c"} {
		y := 20 + i*185
		c.panel(720, y, 200, 165, name+": in-sync replica")
		c.box(740, y+85, 160, 60, "disk", "commit log", "one write, one flush")
		c.text(734, y+62, "start", "small", "the same bytes")
	}
	// Batches leave before the leader itself has written them.
	c.arrow("", 630, 110, 680, 110, 680, 90, 820, 90, 820, 103)
	c.arrow("", 680, 110, 680, 275, 820, 275, 820, 288)
	c.step(680, 110, 3)
	c.arrow("answer", 738, 150, 660, 150, 660, 300, 622, 300)
	c.arrow("answer", 738, 335, 622, 335)
	c.step(690, 335, 4)
	c.text(690, 358, "middle", "small", "on disk")
	return c.svg()
}

func publishers(c *canvas) {
	for i := range 3 {
		y := 60 + i*70
		c.box(20, y, 100, 40, "box", "publisher")
		c.arrow("", 120, y+20, 208, []int{95, 112, 163}[i])
	}
	c.step(164, 68, 1)
	c.text(164, 52, "middle", "small", "PUB")
}

func leader(c *canvas) {
	c.panel(190, 20, 450, 400, "node a: leads orders/0 and bills/2")
	c.text(270, 70, "middle", "small", "inboxes")
	for i, name := range []string{"orders/0", "bills/2"} {
		y := 80 + i*60
		c.box(210, y, 120, 46, "box")
		c.text(220, y+17, "start", "small", name)
		for m := range 4 - i*2 {
			c.rect(220+m*24, y+24, 18, 14, "message", 2)
		}
	}
	c.arrow("", 332, 130, 408, 130)
	c.step(370, 130, 2)
	c.lines(370, 157, "middle", "small", "all that", "waits")
	c.text(520, 70, "middle", "small", "one group in memory")
	c.box(410, 80, 220, 106, "box")
	for i, name := range []string{"batch of orders/0", "batch of bills/2"} {
		y := 90 + i*44
		c.box(422, y, 196, 36, "message", name)
	}
	c.arrow("", 520, 188, 520, 268)
	c.step(520, 225, 3)
	c.text(504, 229, "end", "small", "at the same time")
	c.box(420, 270, 200, 90, "disk", "commit log", "one write, one flush")
	c.lines(520, 382, "middle", "small", "later, in the background:", "segments of each partition")
	c.arrow("answer", 418, 315, 70, 315, 70, 244)
	c.step(164, 315, 5)
	c.lines(300, 300, "middle", "", "OK")
	c.lines(300, 336, "middle", "small", "when a, b and c", "have it on disk")
}
