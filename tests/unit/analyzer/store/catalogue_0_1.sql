BEGIN TRANSACTION;
CREATE TABLE cursors (
	node_id TEXT NOT NULL, 
	journal_id TEXT NOT NULL, 
	next_event_index BIGINT NOT NULL, 
	PRIMARY KEY (node_id, journal_id)
);
INSERT INTO "cursors" VALUES('node-1','journal-1',16);
CREATE TABLE device_ceilings (
	node_id TEXT NOT NULL, 
	device_id TEXT NOT NULL, 
	source TEXT NOT NULL, 
	ceiling_name TEXT NOT NULL, 
	unit TEXT NOT NULL, 
	path TEXT NOT NULL, 
	value DOUBLE NOT NULL, 
	confidence TEXT NOT NULL, 
	note TEXT NOT NULL, 
	clock_hz BIGINT, 
	measured_unix_ns BIGINT, 
	host_busy_ratio DOUBLE, 
	PRIMARY KEY (node_id, device_id, source, ceiling_name, unit, path)
);
CREATE TABLE device_descriptions (
	node_id TEXT NOT NULL, 
	device_id TEXT NOT NULL, 
	device BLOB NOT NULL, 
	PRIMARY KEY (node_id, device_id)
);
CREATE TABLE device_thresholds (
	node_id TEXT NOT NULL, 
	device_id TEXT NOT NULL, 
	memory_inefficient_ratio DOUBLE NOT NULL, 
	compute_inefficient_ratio DOUBLE NOT NULL, 
	PRIMARY KEY (node_id, device_id)
);
CREATE TABLE nodes (
	address TEXT NOT NULL, 
	node_id TEXT NOT NULL, 
	ca_certificate BLOB, 
	node BLOB NOT NULL, 
	origin TEXT, 
	server_name TEXT, 
	unreachable_since_unix_ns BIGINT, 
	PRIMARY KEY (address)
);
INSERT INTO "nodes" VALUES('gpu-host:7001','node-1',X'6361',X'0A066E6F64652D3112087374616E642D696E1A013022096A6F75726E616C2D312A0608A998E0CF06321A0A06637564613A30120B4E564944494120483230301801220102620408011001','ADDED','',NULL);
CREATE TABLE parquet_prefixes (
	kind TEXT NOT NULL, 
	run_id TEXT NOT NULL, 
	prefix TEXT NOT NULL, 
	PRIMARY KEY (kind, run_id)
);
CREATE TABLE rows_artifacts (
	run_id TEXT NOT NULL, 
	event_index BIGINT, 
	artifact_name TEXT, 
	digest TEXT, 
	size_bytes BIGINT, 
	media_type TEXT
);
CREATE TABLE rows_ceilings (
	run_id TEXT NOT NULL, 
	event_index BIGINT, 
	device_id TEXT, 
	ceiling_name TEXT, 
	unit TEXT, 
	value DOUBLE, 
	path TEXT, 
	source TEXT, 
	confidence TEXT, 
	note TEXT, 
	clock_hz BIGINT, 
	measured_unix_ns BIGINT, 
	host_busy_ratio DOUBLE
);
CREATE TABLE rows_configurations (
	run_id TEXT NOT NULL, 
	event_index BIGINT, 
	configuration_index BIGINT, 
	kernel_name TEXT, 
	label TEXT, 
	parameters TEXT, 
	block TEXT, 
	grid TEXT, 
	dynamic_shared_memory_bytes BIGINT, 
	category TEXT, 
	dtype TEXT, 
	path TEXT, 
	flop DOUBLE, 
	bytes DOUBLE, 
	macros TEXT, 
	cache_mode TEXT, 
	process_index BIGINT, 
	variant TEXT, 
	model_name TEXT, 
	batch_size BIGINT, 
	symbol TEXT, 
	layer_path TEXT
);
INSERT INTO "rows_configurations" VALUES('run-1',3,0,'saxpy','saxpy N=1000','{"N": 1000}','256x1x1','4x1x1',0,'elementwise','float32','',2000000.0,12000000.0,'{}',NULL,0,'',NULL,NULL,NULL,NULL);
INSERT INTO "rows_configurations" VALUES('run-2',11,0,'saxpy','saxpy N=1000','{"N": 1000}','256x1x1','4x1x1',0,'elementwise','float32','',2000000.0,12000000.0,'{}',NULL,0,'',NULL,NULL,NULL,NULL);
CREATE TABLE rows_counter_reports (
	run_id TEXT NOT NULL, 
	event_index BIGINT, 
	artifact_name TEXT, 
	launch_count BIGINT, 
	cache_control TEXT, 
	clock_control TEXT
);
CREATE TABLE rows_counters (
	run_id TEXT NOT NULL, 
	event_index BIGINT, 
	configuration_index BIGINT, 
	launch_index BIGINT, 
	kernel_name TEXT, 
	block TEXT, 
	grid TEXT, 
	compute_capability TEXT, 
	section_name TEXT, 
	metric_name TEXT, 
	unit TEXT, 
	value DOUBLE, 
	text TEXT
);
CREATE TABLE rows_failures (
	run_id TEXT NOT NULL, 
	event_index BIGINT, 
	configuration_index BIGINT, 
	label TEXT, 
	code TEXT, 
	reason TEXT, 
	message TEXT
);
CREATE TABLE rows_log_lines (
	run_id TEXT NOT NULL, 
	event_index BIGINT, 
	event_unix_ns BIGINT, 
	level TEXT, 
	line TEXT
);
INSERT INTO "rows_log_lines" VALUES('run-1',5,1795731504805533022,'INFO','a');
INSERT INTO "rows_log_lines" VALUES('run-1',5,1795731504805533022,'INFO','b');
INSERT INTO "rows_log_lines" VALUES('run-2',14,1795731504805565307,'INFO','first');
INSERT INTO "rows_log_lines" VALUES('run-2',14,1795731504805565307,'INFO','second');
CREATE TABLE rows_measurements (
	run_id TEXT NOT NULL, 
	event_index BIGINT, 
	configuration_index BIGINT, 
	kernel_name TEXT, 
	label TEXT, 
	parameters TEXT, 
	category TEXT, 
	dtype TEXT, 
	path TEXT, 
	block TEXT, 
	grid TEXT, 
	dynamic_shared_memory_bytes BIGINT, 
	macros TEXT, 
	process_index BIGINT, 
	variant TEXT, 
	device_id TEXT, 
	backend TEXT, 
	flop DOUBLE, 
	bytes DOUBLE, 
	sample_count BIGINT, 
	discarded_sample_count BIGINT, 
	warm_up_count BIGINT, 
	duration_median_ns DOUBLE, 
	duration_median_low_ns DOUBLE, 
	duration_median_high_ns DOUBLE, 
	duration_min_ns DOUBLE, 
	duration_max_ns DOUBLE, 
	duration_mean_ns DOUBLE, 
	duration_lower_quartile_ns DOUBLE, 
	duration_upper_quartile_ns DOUBLE, 
	duration_p95_ns DOUBLE, 
	duration_p99_ns DOUBLE, 
	duration_standard_deviation_ns DOUBLE, 
	duration_median_absolute_deviation_ns DOUBLE, 
	noise_ratio DOUBLE, 
	timing_method TEXT, 
	launches_per_sample BIGINT, 
	is_blocked BOOLEAN, 
	stopping_criterion TEXT, 
	stop_reason TEXT, 
	cache_mode TEXT, 
	verification_state TEXT, 
	verification_max_absolute_error DOUBLE, 
	verification_max_relative_error DOUBLE, 
	verification_message TEXT, 
	measured_unix_ns BIGINT, 
	elapsed_ns BIGINT, 
	compile_ns BIGINT, 
	input_distribution TEXT, 
	seed BIGINT, 
	compiler_options TEXT, 
	driver_version TEXT, 
	toolkit_version TEXT, 
	device_uuid TEXT, 
	sm_clock_hz BIGINT, 
	memory_clock_hz BIGINT, 
	temperature_celsius DOUBLE, 
	power_watts DOUBLE, 
	throttle_reasons TEXT, 
	register_count BIGINT, 
	static_shared_memory_bytes BIGINT, 
	local_memory_bytes BIGINT, 
	spill_store_bytes BIGINT, 
	spill_load_bytes BIGINT, 
	constant_memory_bytes BIGINT, 
	max_threads_per_block BIGINT, 
	active_block_count BIGINT, 
	theoretical_occupancy_ratio DOUBLE, 
	other_process_count BIGINT, 
	host_busy_ratio DOUBLE, 
	recheck_state TEXT, 
	model_name TEXT, 
	batch_size BIGINT, 
	symbol TEXT, 
	stated_flop_per_s DOUBLE, 
	stated_flop_per_byte DOUBLE, 
	tokens_per_s DOUBLE, 
	layer_path TEXT, 
	device_memory_bytes BIGINT, 
	disturbance TEXT
);
INSERT INTO "rows_measurements" VALUES('run-1',6,0,'saxpy','saxpy N=1000','{"N": 1000}','elementwise','float32','','256x1x1','4x1x1',0,'{}',0,'','cuda:0','PYCUDA',2000000.0,12000000.0,20,1,2,5000.0,4999.0,5001.0,4998.0,5002.0,5000.0,4999.0,5001.0,5002.0,5002.0,1.0,0.0,0.0002,'SINGLE',1,0,'CONFIDENCE','CONFIDENCE_REACHED','COLD','PASSED',0.0,0.0,'',1700000000000000000,10000000,1000000,'uniform',0,'',NULL,NULL,NULL,NULL,NULL,NULL,NULL,'',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE rows_paired_comparisons (
	run_id TEXT NOT NULL, 
	event_index BIGINT, 
	configuration_index BIGINT, 
	label TEXT, 
	baseline_configuration_index BIGINT, 
	baseline_label TEXT, 
	block_count BIGINT, 
	duration_ratio DOUBLE, 
	duration_ratio_low DOUBLE, 
	duration_ratio_high DOUBLE, 
	cycle_ratio DOUBLE, 
	cycle_ratio_low DOUBLE, 
	cycle_ratio_high DOUBLE, 
	confidence_ratio DOUBLE, 
	verdict TEXT, 
	reason TEXT, 
	measured_unix_ns BIGINT
);
CREATE TABLE rows_telemetry (
	run_id TEXT NOT NULL, 
	event_index BIGINT, 
	measured_unix_ns BIGINT, 
	device_id TEXT, 
	utilization_ratio DOUBLE, 
	memory_used_bytes BIGINT, 
	memory_total_bytes BIGINT, 
	clock_hz BIGINT, 
	memory_clock_hz BIGINT, 
	temperature_celsius DOUBLE, 
	power_watts DOUBLE, 
	throttle_reasons TEXT, 
	load_average DOUBLE
);
INSERT INTO "rows_telemetry" VALUES('run-2',15,5,'cuda:0',0.5,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE runs (
	run_id TEXT NOT NULL, 
	node_id TEXT NOT NULL, 
	journal_id TEXT, 
	run BLOB NOT NULL, 
	create_unix_ns BIGINT NOT NULL, 
	is_final BOOLEAN NOT NULL, 
	is_compacted BOOLEAN NOT NULL, 
	next_event_index BIGINT NOT NULL, 
	device_event_index BIGINT, 
	owner TEXT, 
	stored_bytes BIGINT, 
	PRIMARY KEY (run_id)
);
INSERT INTO "runs" VALUES('run-1','node-1','journal-1',X'0A0572756E2D3112066E6F64652D311A2F0A2B0A070A05736178707938014A1A0801100A2080CAB5EE012880ACC7F0373801500158016801700168017801320020032A0608A998E0CF06320C08B0E0A2D80610A8CB8D80033A0C08B0E0A2D8061098FA8D80035206637564613A3068037A076E696768746C7982010A736F6D65206E6F746573',1777863721000000000,1,0,8,2,'',NULL);
INSERT INTO "runs" VALUES('run-2','node-1','journal-1',X'0A0572756E2D3212066E6F64652D311A2F0A2B0A070A05736178707938014A1A0801100A2080CAB5EE012880ACC7F0373801500158016801700168017801320020022A0608AA98E0CF06320C08B0E0A2D8061090CD8F80035206637564613A3068037209636F6D70696C696E67',1777863722000000000,0,0,16,10,'',NULL);
CREATE TABLE sample_batches (
	run_id TEXT NOT NULL, 
	event_index BIGINT NOT NULL, 
	configuration_index BIGINT NOT NULL, 
	first_sample_index BIGINT NOT NULL, 
	measured_unix_ns BIGINT NOT NULL, 
	sample_count BIGINT NOT NULL, 
	duration_ns BLOB NOT NULL, 
	sm_clock_hz BLOB, 
	discarded_positions BLOB
);
INSERT INTO "sample_batches" VALUES('run-1',4,0,0,1795731504805484592,10,X'0000000000408F400000000000488F400000000000508F400000000000588F400000000000608F400000000000688F400000000000708F400000000000788F400000000000808F400000000000888F40',NULL,NULL);
INSERT INTO "sample_batches" VALUES('run-2',12,0,0,1795731504805550843,10,X'0000000000408F400000000000488F400000000000508F400000000000588F400000000000608F400000000000688F400000000000708F400000000000788F400000000000808F400000000000888F40',NULL,NULL);
INSERT INTO "sample_batches" VALUES('run-2',13,0,10,1795731504805552642,10,X'0000000000908F400000000000988F400000000000A08F400000000000A88F400000000000B08F400000000000B88F400000000000C08F400000000000C88F400000000000D08F400000000000D88F40',NULL,NULL);
CREATE TABLE traces (
	run_id TEXT NOT NULL, 
	event_index BIGINT NOT NULL, 
	artifact_names TEXT NOT NULL, 
	collector TEXT NOT NULL, 
	is_read BOOLEAN NOT NULL, 
	PRIMARY KEY (run_id, event_index)
);
CREATE INDEX ix_runs_create_unix_ns ON runs (create_unix_ns);
CREATE INDEX ix_runs_node_id ON runs (node_id);
CREATE INDEX ix_runs_owner ON runs (owner);
CREATE INDEX sample_batches_by_run ON sample_batches (run_id, event_index);
CREATE INDEX rows_configurations_by_run ON rows_configurations (run_id, event_index);
CREATE INDEX configurations_by_index ON rows_configurations (run_id, configuration_index);
CREATE INDEX rows_measurements_by_run ON rows_measurements (run_id, event_index);
CREATE INDEX rows_paired_comparisons_by_run ON rows_paired_comparisons (run_id, event_index);
CREATE INDEX rows_ceilings_by_run ON rows_ceilings (run_id, event_index);
CREATE INDEX rows_telemetry_by_run ON rows_telemetry (run_id, event_index);
CREATE INDEX rows_log_lines_by_run ON rows_log_lines (run_id, event_index);
CREATE INDEX rows_failures_by_run ON rows_failures (run_id, event_index);
CREATE INDEX rows_artifacts_by_run ON rows_artifacts (run_id, event_index);
CREATE INDEX rows_counter_reports_by_run ON rows_counter_reports (run_id, event_index);
CREATE INDEX rows_counters_by_run ON rows_counters (run_id, event_index);
COMMIT;
