package clip

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Plain returns text that came from a peer, such as a client's name, in a form that may be shown as a part of a line: a
// terminal obeys none of it. Control characters, line ends among them, characters that change the direction of writing,
// and others that cannot be seen become \u0000, as in JSON; bytes that are no UTF-8 become \x00.
func Plain(s string) string {
	if strings.IndexFunc(s, hostile) < 0 {
		return s
	}
	return string(appendPlain(nil, []byte(s), hostile))
}

// hostile also finds bytes that are no UTF-8.
func hostile(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }

// hostileInText is hostile for text of several lines.
func hostileInText(r rune) bool { return r != '\n' && r != '\t' && hostile(r) }

func appendPlain(dst, s []byte, bad func(rune) bool) []byte {
	const hex = "0123456789abcdef"
	for len(s) > 0 {
		r, n := utf8.DecodeRune(s)
		switch {
		case r == utf8.RuneError && n == 1:
			dst = append(dst, '\\', 'x', hex[s[0]>>4], hex[s[0]&15])
		case r == utf8.RuneError || !bad(r):
			dst = append(dst, s[:n]...)
		default:
			units := utf16.AppendRune(nil, r)
			for _, u := range units {
				dst = append(dst, '\\', 'u', hex[u>>12], hex[u>>8&15], hex[u>>4&15], hex[u&15])
			}
		}
		s = s[n:]
	}
	return dst
}

// Writer makes text that may have come from peers harmless on its way to To, as Plain does, but leaves line ends and
// tabs. JSON keeps its meaning. One goroutine at a time may use it.
type Writer struct {
	To   io.Writer
	rest []byte // the beginning of a character whose end is still to be written
}

// Write writes p, or says why not; what it was able to write before is not told.
func (w *Writer) Write(p []byte) (int, error) {
	s := append(w.rest, p...)
	whole := len(s)
	for n := 1; n < utf8.UTFMax && n <= len(s); n++ {
		if b := s[len(s)-n]; utf8.RuneStart(b) {
			if !utf8.FullRune(s[len(s)-n:]) {
				whole -= n
			}
			break
		}
	}
	out := appendPlain(nil, s[:whole], hostileInText)
	w.rest = append([]byte(nil), s[whole:]...)
	if _, err := w.To.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Unwrap returns what w writes to, if w is a Writer, else w.
func Unwrap(w any) any {
	if p, ok := w.(*Writer); ok {
		return p.To
	}
	return w
}
