package main

import (
	"errors"
	"regexp"

	"penstock/cmd/engine/internal/client"
)

// Exit codes. They are documented in docs/reference/commands.md and may not change their meaning.
const (
	exitOther   = 1
	exitUsage   = 2
	exitData    = 3
	exitAddress = 4
	exitForgot  = 5
	exitMemory  = 6

	exitUnhealthy = 10
	exitPartial   = 11
)

// exitError is an error with the exit code that it gives the process. If err is nil, the command has already printed
// what is wrong.
type exitError struct {
	Code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// fail returns err with the exit code that it gives the process.
func fail(code int, err error) error { return &exitError{code, err} }

// packageNames matches the package prefixes of our errors. They help programs that embed the engine; on a command line
// the sentence alone is enough.
var packageNames = regexp.MustCompile(
	`(^|: )(?:(?:aio|aside|backup|batch|client|clog|cluster|engine|etcd|kv|meta|migrate|netproto|nsq|` +
		`peer|replicate|segment|wire): )+`)

// withExitCode gives an error the exit code for a command that talks to a node, unless it has one.
func withExitCode(err error) error {
	var exit *exitError
	switch {
	case err == nil || errors.As(err, &exit):
		return err
	case errors.Is(err, client.ErrUsage):
		return fail(exitUsage, err)
	}
	return fail(exitOther, err)
}
