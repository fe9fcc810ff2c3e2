package base

import (
	"regexp"
	"strings"
)

// maxNameBytes is the length of the longest name of a topic or channel.
const maxNameBytes = 64

var namePattern = regexp.MustCompile(`^[.a-zA-Z0-9_-]+(#ephemeral)?$`)

// ValidTopicName says whether name can name a topic, by the rule of nsqd. Names never become paths, so "." and ".." are
// allowed.
func ValidTopicName(name string) bool {
	return len(name) >= 1 && len(name) <= maxNameBytes && namePattern.MatchString(name)
}

// ValidChannelName applies the same rule to channel names.
func ValidChannelName(name string) bool { return ValidTopicName(name) }

// Ephemeral says whether name has NSQ's suffix of an ephemeral topic or channel.
func Ephemeral(name string) bool { return strings.HasSuffix(name, "#ephemeral") }
