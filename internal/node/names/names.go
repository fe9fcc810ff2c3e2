// Package names has the rules for the names of topics, channels and tokens. The node, the servers, the cluster's
// administration and the commands use it. It imports nothing of ours.
package names

import (
	"regexp"
	"strconv"
	"strings"
)

// MaxTokenBytes is the length of the longest name of a token that a topic remembers.
const MaxTokenBytes = 128

// Token names a token in a sentence.
func Token(name string) string { return "token " + strconv.Quote(name) }

// maxNameBytes is the length of the longest name of a topic or channel.
const maxNameBytes = 64

var namePattern = regexp.MustCompile(`^[.a-zA-Z0-9_-]+(#ephemeral)?$`)

// ValidTopic says whether name can name a topic, by the rule of nsqd: at most 64 bytes, one or more of the characters
// a-z A-Z 0-9 . _ -, optionally followed by #ephemeral. Names never become paths, so "." and ".." are allowed.
func ValidTopic(name string) bool {
	return len(name) >= 1 && len(name) <= maxNameBytes && namePattern.MatchString(name)
}

// ValidChannel applies the same rule to channel names.
func ValidChannel(name string) bool { return ValidTopic(name) }

// Ephemeral says whether name has NSQ's suffix of an ephemeral topic or channel.
func Ephemeral(name string) bool { return strings.HasSuffix(name, "#ephemeral") }
