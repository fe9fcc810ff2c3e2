// Package clip shortens texts that people read.
package clip

import "unicode/utf8"

// Text returns s, or of a longer one as much of its beginning as fits into maxBytes without a part of a character. What
// is not UTF-8 is cut at maxBytes.
func Text(s string, maxBytes int) string {
	if len(s) <= maxBytes {
		return s
	}
	for n := maxBytes; n > 0 && n > maxBytes-utf8.UTFMax; n-- {
		if utf8.RuneStart(s[n]) {
			return s[:n]
		}
	}
	return s[:maxBytes]
}
