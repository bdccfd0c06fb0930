package flow

// An Access is all that a client does at NATS: the subjects that it publishes to, its requests to
// JetStream among them, and those that it subscribes to. A server that allows nothing else lets it
// do its work; replies come to subjects below its Options.InboxPrefix.
type Access struct{ Publish, Subscribe []string }

// WalkerAccess is what a walker of a site does: it takes the site's walk tasks, reports
// what it found, is present, describes itself when it is asked to, and is drained.
func WalkerAccess(site, inbox string) Access {
	publish := append(accessTo(walkQueue(site)), serviceSubjectOf(RoleWalker, site))
	return Access{append(publish, Slices.Subject, progressSubject), workerHears(inbox)}
}

// ReaderAccess is what a reader of a site does: it takes the site's read batches, reports
// what it stored, is present, describes itself when it is asked to, and is drained.
func ReaderAccess(site, inbox string) Access {
	publish := append(accessTo(readQueue(site)), serviceSubjectOf(RoleReader, site))
	return Access{append(publish, Packs.Subject, Lists.Subject, Batches.Subject, progressSubject), workerHears(inbox)}
}

func workerHears(inbox string) []string {
	return append(replies(inbox), presentSubject+".*", askSubject, drainSubject+".*")
}

// CommitterAccess is what a committer does: it hands work out, takes results, listens to
// reports, looks for workers, keeps the streams and consumers of all sites, and knows which services there are.
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

// FollowerAccess is what an operator's commands do: they listen to reports, may
// look at the streams, ask who is there, and drain workers.
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

// accessTo is what asking a consumer for messages takes, and acknowledging them; the
// subjects of acknowledgements have a domain and an account before the stream in newer servers.
func accessTo(q queue) []string {
	of := q.stream + "." + q.consumer
	return []string{
		jsAPI + "CONSUMER.INFO." + of, jsAPI + "CONSUMER.MSG.NEXT." + of,
		jsACK + of + ".>", jsACK + "*.*." + of + ".>",
	}
}

func replies(inbox string) []string { return []string{inbox + ".>"} }
