package main

import "fmt"

const (
	cell      = 34 // width of a message
	firstCell = 170
	cells     = 16
)

// A part is what a channel knows of one partition: a letter for each message. c: confirmed, d: deferred, a dot:
// waiting, a capital: in flight to the consumer of this name.
type part struct {
	channel, states string
}

// channel shows two channels over the two partitions of a topic.
func channel() string {
	c := newCanvas(940, 440, "Two channels over the two partitions of a topic: each channel knows of each partition "+
		"which messages are confirmed, in flight or deferred")
	c.text(20, 30, "start", "title", "topic orders")
	partition(c, 50, 0, part{"billing", "ccccccAcBd......"}, part{"audit", "cccccccccccccc.."})
	partition(c, 220, 1, part{"billing", "cccBcc.........."}, part{"audit", "ccccccccccXXcc.."})
	consumers(c)
	legend(c)
	return c.svg()
}

func legend(c *canvas) {
	x := 20
	for _, s := range []struct{ class, says string }{
		{"confirmed", "confirmed"},
		{"flight", "in flight"},
		{"deferred", "deferred until its time"},
		{"box", "waits for a consumer"},
		{"", "first unfinished message"},
	} {
		if s.class == "" {
			c.mark(x+9, 400)
		} else {
			c.rect(x, 400, 18, 18, s.class, 2)
		}
		c.text(x+26, 414, "start", "", s.says)
		x += 56 + 7*len(s.says)
	}
}

// mark is the red line in front of the first unfinished message.
func (c *canvas) mark(x, y int) {
	fmt.Fprintf(&c.b, `<path d="M%d %d V%d" class="mark"/>`+"\n", x, y-3, y+23)
}

func partition(c *canvas, y, number int, parts ...part) {
	c.text(20, y+18, "start", "", fmt.Sprintf("partition %d", number))
	c.text(20, y+35, "start", "small", "one log, in order")
	for i := range cells {
		c.box(firstCell+i*cell, y, cell-4, 26, "message")
		c.text(firstCell+i*cell+15, y+17, "middle", "small", fmt.Sprint(i))
	}
	c.text(firstCell+cells*cell+4, y+17, "start", "small", "new")
	for k, p := range parts {
		at := y + 48 + k*44
		c.text(20, at+15, "start", "", "channel "+p.channel)
		first := -1
		for i, s := range p.states {
			class := map[rune]string{'c': "confirmed", 'd': "deferred", '.': "box"}[s]
			if class == "" {
				class = "flight"
			}
			c.rect(firstCell+i*cell, at, cell-4, 20, class, 2)
			if class == "flight" {
				c.text(firstCell+i*cell+15, at+15, "middle", "", string(s))
			}
			if first < 0 && s != 'c' {
				first = i
			}
		}
		c.mark(firstCell+first*cell-2, at)
	}
}

func consumers(c *canvas) {
	for i, of := range []string{"A of billing", "B of billing", "X of audit"} {
		c.box(780, 90+i*80, 140, 44, "box", "consumer", of)
	}
}
