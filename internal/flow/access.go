package flow

// An Access lists everything that a client does at NATS: the subjects that it publishes to,
// including its requests to JetStream, and the subjects that it subscribes to. A client can do its
// work on a server that allows nothing else. Replies arrive on subjects below its
// Options.InboxPrefix.
type Access struct{ Publish, Subscribe []string }

// WalkerAccess returns what a walker of a site does: it takes the site's walk tasks, reports what
// it found, is present, describes itself when asked, and can be drained.
func WalkerAccess(site, inbox string) Access {
	publish := append(accessTo(walkQueue(site)), serviceSubjectOf(RoleWalker, site))
	return Access{append(publish, Slices.Subject, progressSubject), workerHears(inbox)}
}

// ReaderAccess returns what a reader of a site does: it takes the site's read batches, reports what
// it stored, is present, describes itself when asked, and can be drained.
func ReaderAccess(site, inbox string) Access {
	publish := append(accessTo(readQueue(site)), serviceSubjectOf(RoleReader, site))
	return Access{append(publish, Packs.Subject, Lists.Subject, Batches.Subject, progressSubject), workerHears(inbox)}
}

// HousekeeperAccess returns what a pruner, a scrubber or a restorer does: it is present, and
// describes itself when asked. It takes no work from NATS.
func HousekeeperAccess(role Role, inbox string) Access {
	return Access{[]string{serviceSubjectOf(role, "")}, append(replies(inbox), presentSubject+".*", askSubject)}
}

func workerHears(inbox string) []string {
	return append(replies(inbox), presentSubject+".*", askSubject, drainSubject+".*")
}

// CommitterAccess returns what a committer does: it sends work, takes results, listens to reports,
// checks which workers are connected, maintains the streams and consumers of all sites, and keeps
// the roster of services.
func CommitterAccess(inbox string) Access {
	publish := append(accessTo(commitQueue), Walk.Subject+".*", Read.Subject+".*", presentSubject+".*",
		serviceSubjectOf(RoleCommitter, ""), rosterSubject, askSubject)
	for _, q := range []queue{walkQueue(""), readQueue(""), commitQueue} {
		publish = append(publish,
			jsAPI+"STREAM.INFO."+q.stream, jsAPI+"STREAM.CREATE."+q.stream, jsAPI+"STREAM.UPDATE."+q.stream,
			jsAPI+"CONSUMER.LIST."+q.stream)
		if q == commitQueue {
			publish = append(publish, jsAPI+"CONSUMER.CREATE."+q.stream+"."+q.consumer+"."+q.filter)
			continue
		}
		publish = append(publish, jsAPI+"CONSUMER.CREATE."+q.stream+".*."+q.subjects, jsAPI+"CONSUMER.DELETE."+q.stream+".*")
	}
	return Access{publish, append(replies(inbox), progressSubject, presentSubject+".*", askSubject, serviceSubject+".>")}
}

// FollowerAccess returns what an operator's commands do: they listen to reports, may inspect the
// streams, ask the services to describe themselves, and drain workers.
func FollowerAccess(inbox string) Access {
	publish := []string{askSubject, drainSubject + ".*"}
	for _, stream := range []string{walkStream, readStream, commitStream} {
		publish = append(publish, jsAPI+"STREAM.INFO."+stream, jsAPI+"CONSUMER.LIST."+stream)
	}
	return Access{publish, append(replies(inbox), progressSubject, serviceSubject+".>", rosterSubject)}
}

const (
	jsAPI = "$JS.API."
	jsACK = "$JS.ACK."
)

// accessTo returns the subjects needed to request messages from a consumer and to acknowledge them.
// In newer servers, the subjects of acknowledgements have a domain and an account before the
// stream.
func accessTo(q queue) []string {
	of := q.stream + "." + q.consumer
	return []string{
		jsAPI + "CONSUMER.INFO." + of, jsAPI + "CONSUMER.MSG.NEXT." + of,
		jsACK + of + ".>", jsACK + "*.*." + of + ".>",
	}
}

func replies(inbox string) []string { return []string{inbox + ".>"} }
