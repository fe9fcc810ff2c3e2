// Package definitions has the command definitions: it exports topics and channels with their settings as one document,
// and makes a node or a cluster what a document says. Only main imports it.
package definitions
