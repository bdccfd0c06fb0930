package fleet

// Summary is the object that backup --json ends with.
type Summary struct {
	Snapshot, Filer, Shard, State, Reason string
	Files, Directories, Bytes             int64
	FilesNew                              int64 `json:"files_new"`
	FilesChanged                          int64 `json:"files_changed"`
	FilesUnchanged                        int64 `json:"files_unchanged"`
	NewBytes                              int64 `json:"new_bytes"`
	StoredBytes                           int64 `json:"stored_bytes"`
	ReadBytes                             int64 `json:"read_bytes"`
	StatCalls                             int64 `json:"stat_calls"`
	Errors                                int64
	ElapsedSeconds                        float64 `json:"elapsed_seconds"`
}

// Snapshot is a line of snapshot ls --json, or the object of snapshot show --json.
type Snapshot struct {
	ID, Filer, Shard, State, Reason string
	Source                          string // in snapshot show
	Tags                            []string
	Number, Base                    int64
	Files, Directories, Bytes       int64
	NewBytes                        int64 `json:"new_bytes"`
	StoredBytes                     int64 `json:"stored_bytes"`
	ReadBytes                       int64 `json:"read_bytes"`
	StatCalls                       int64 `json:"stat_calls"`
	FilesUnchanged                  int64 `json:"files_unchanged"`
	Errors                          int64
	Tasks, Batches                  [2]int64 // settled, announced
}

// Problem is an error object that names a path.
type Problem struct {
	Path, Op, Error string
}
