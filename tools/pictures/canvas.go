package main

import (
	"fmt"
	"html"
	"strings"
)

// style has the colours of both themes. A picture has its own background, because the page around it may have another
// theme than the one that the browser prefers.
const style = `
text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
.small { font-size: 11.5px; fill: #59636e; }
.title { font-size: 14px; font-weight: 600; }
.step { font-size: 12px; font-weight: 600; fill: #ffffff; }
.page { fill: #ffffff; }
.panel { fill: #f6f8fa; stroke: #d1d9e0; }
.box { fill: #ffffff; stroke: #818b98; }
.message { fill: #ddf4ff; stroke: #0969da; }
.disk { fill: #fff8c5; stroke: #9a6700; }
.confirmed { fill: #d1d9e0; stroke: #818b98; }
.flight { fill: #b6e3ff; stroke: #0969da; }
.deferred { fill: #fae17d; stroke: #9a6700; }
.dot { fill: #0969da; }
.arrow { fill: none; stroke: #59636e; stroke-width: 1.5; marker-end: url(#head); }
.answer { stroke-dasharray: 5 4; }
.mark { fill: none; stroke: #cf222e; stroke-width: 2; }
.head { fill: #59636e; }
.markText { fill: #cf222e; font-size: 11.5px; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; }
.small { fill: #9198a1; }
.step { fill: #ffffff; }
.page { fill: #0d1117; }
.panel { fill: #151b23; stroke: #3d444d; }
.box { fill: #0d1117; stroke: #656c76; }
.message { fill: #0c2d6b; stroke: #4493f8; }
.disk { fill: #341a00; stroke: #d29922; }
.confirmed { fill: #3d444d; stroke: #656c76; }
.flight { fill: #0c2d6b; stroke: #4493f8; }
.deferred { fill: #4b2900; stroke: #d29922; }
.dot { fill: #1f6feb; }
.arrow { stroke: #9198a1; }
.mark { stroke: #f85149; }
.head { fill: #9198a1; }
.markText { fill: #f85149; }
}
`

// canvas collects an SVG. Lengths are pixels.
type canvas struct {
	b             strings.Builder
	width, height int
	title         string
}

func newCanvas(width, height int, title string) *canvas {
	c := &canvas{width: width, height: height, title: title}
	c.rect(0, 0, width, height, "page", 0)
	return c
}

func (c *canvas) rect(x, y, w, h int, class string, radius int) {
	fmt.Fprintf(&c.b, `<rect x="%d" y="%d" width="%d" height="%d" rx="%d" class="%s"/>`+"\n", x, y, w, h, radius, class)
}

// text writes a line that is anchored at start, middle or end.
func (c *canvas) text(x, y int, anchor, class, line string) {
	fmt.Fprintf(&c.b, `<text x="%d" y="%d" text-anchor="%s" class="%s">%s</text>`+"\n",
		x, y, anchor, class, html.EscapeString(line))
}

// lines writes lines below each other, the first one at y.
func (c *canvas) lines(x, y int, anchor, class string, lines ...string) {
	for i, line := range lines {
		c.text(x, y+i*16, anchor, class, line)
	}
}

// box is a rectangle with lines in its middle.
func (c *canvas) box(x, y, w, h int, class string, lines ...string) {
	c.rect(x, y, w, h, class, 5)
	c.lines(x+w/2, y+h/2+5-8*(len(lines)-1), "middle", "", lines...)
}

// panel is a rectangle with a title in its corner.
func (c *canvas) panel(x, y, w, h int, title string) {
	c.rect(x, y, w, h, "panel", 8)
	c.text(x+14, y+24, "start", "title", title)
}

// arrow goes along points, of which each has an x and a y.
func (c *canvas) arrow(class string, points ...int) {
	var path strings.Builder
	for i := 0; i+1 < len(points); i += 2 {
		fmt.Fprintf(&path, "%s%d %d", map[bool]string{true: "M", false: " L"}[i == 0], points[i], points[i+1])
	}
	fmt.Fprintf(&c.b, `<path d="%s" class="arrow %s"/>`+"\n", &path, class)
}

// step is a number in a circle.
func (c *canvas) step(x, y, number int) {
	fmt.Fprintf(&c.b, `<circle cx="%d" cy="%d" r="10" class="dot"/>`+"\n", x, y)
	c.text(x, y+4, "middle", "step", fmt.Sprint(number))
}

// svg returns the picture.
func (c *canvas) svg() string {
	size := fmt.Sprintf(`width="%d" height="%d" viewBox="0 0 %[1]d %[2]d"`, c.width, c.height)
	return `<svg xmlns="http://www.w3.org/2000/svg" ` + size + ` role="img">
<title>` + html.EscapeString(c.title) + `</title>
<style>` + style + `</style>
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">` +
		`<path d="M0 0 L10 5 L0 10 z" class="head"/></marker></defs>
` + c.b.String() + `</svg>
`
}
