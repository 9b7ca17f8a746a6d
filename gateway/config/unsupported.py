"""Official keys that are known but have no effect here, by reason, and values that ask for what is not served.

`sources.py` turns the keys into notices. A value of `REFUSED_VALUES` stops the start: who sets it counts on automatic
failover by DLedger, or on messages in another format, and would get neither. Keys that only refine that, such as
`totalReplicas`, do nothing for a single master in the official broker either: they stay notices.
"""

from dataclasses import dataclass

IGNORED = "is not needed here and has no effect"
_UNUSED = """
    maxTopicLength flushCommitLogThoroughInterval putMessageTimeout
    pullBatchMaxMessageCount flushDelayOffsetInterval
    enableRegisterProducer
    subscriptionExpiredTimeout
    forceRegister compressedRegister
"""
UNUSED = frozenset(_UNUSED.split())
"""Declared keys that nothing reads yet; a test keeps this true."""
UNUSED_REASON = "has no effect yet"
REASONS: dict[str, str] = {
    IGNORED: """
        authenticationProvider authenticationMetadataProvider authenticationStrategy authorizationProvider
        authorizationMetadataProvider authorizationStrategy userCacheMaxNum userCacheExpiredSecond
        userCacheRefreshSecond aclCacheMaxNum aclCacheExpiredSecond aclCacheRefreshSecond
        statefulAuthenticationCacheMaxNum statefulAuthenticationCacheExpiredSecond
        statefulAuthorizationCacheMaxNum statefulAuthorizationCacheExpiredSecond
        channelNotActiveInterval disableCallbackExecutor disableNettyWorkerGroup enableReconnectForGoAway
        isBrokerContainer isInBrokerContainer isScanAvailableNameSrv maxReconnectIntervalTimeSeconds
        socksProxyConfig rocketmqHome brokerConfigPath recoverConcurrently messageStorePlugIn highSpeedMode
        sendMessageThreadPoolNums putMessageFutureThreadPoolNums pullMessageThreadPoolNums
        litePullMessageThreadPoolNums ackMessageThreadPoolNums processReplyMessageThreadPoolNums
        queryMessageThreadPoolNums adminBrokerThreadPoolNums clientManageThreadPoolNums
        consumerManageThreadPoolNums loadBalanceProcessorThreadPoolNums heartbeatThreadPoolNums
        recoverThreadPoolNums endTransactionThreadPoolNums flushConsumerOffsetHistoryInterval
        putThreadPoolQueueCapacity pullThreadPoolQueueCapacity
        litePullThreadPoolQueueCapacity ackThreadPoolQueueCapacity replyThreadPoolQueueCapacity
        queryThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity
        consumerManagerThreadPoolQueueCapacity heartbeatThreadPoolQueueCapacity
        endTransactionPoolQueueCapacity adminBrokerThreadPoolQueueCapacity
        loadBalanceThreadPoolQueueCapacity transferMsgByHeap enableNetWorkFlowControl isolateLogEnable asyncSendEnable
        compatibleWithOldNameSrv printChannelGroups printChannelGroupsMinNum enableFastChannelEventProcess
        configManagerVersion useSingleRocksDBForAllConfigs useReentrantLockWhenPutMessage
        flushCommitLogTimed flushCommitLogLeastPages commitCommitLogLeastPages
        flushLeastPagesWhenWarmMapedFile flushConsumeQueueLeastPages commitCommitLogThoroughInterval
        flushConsumeQueueThoroughInterval commitIntervalCommitLog maxRecoveryCommitlogFiles
        commitLogRecoverMaxNum deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval
        destroyMapedFileIntervalForcibly redeleteHangedFileInterval putMsgIndexHightWater messageIndexSafe
        warmMapedFileEnable debugLockEnable transientStorePoolEnable
        transientStorePoolSize fastFailIfNoBufferInStorePool writeWithoutMmap maxBatchDeleteFilesNum
        dispatchCqThreads dispatchCqCacheNum enableAsyncReput recheckReputOffsetFromCq
        autoMessageVersionOnTopicLen travelCqFileNumWhenGetMessage correctLogicMinOffsetSleepInterval
        correctLogicMinOffsetForceInterval mappedFileSwapEnable commitLogForceSwapMapInterval
        commitLogSwapMapInterval commitLogSwapMapReserveFileNum logicQueueForceSwapMapInterval
        logicQueueSwapMapInterval cleanSwapedMapInterval logicQueueSwapMapReserveFileNum
        searchBcqByCacheEnable dispatchFromSenderThread wakeCommitWhenPutMessage wakeFlushWhenPutMessage
        maxAsyncPutMessageRequests sampleCountThreshold sampleSteps dataReadAheadEnable
        accessMessageInMemoryHotRatio enableBuildConsumeQueueConcurrently batchDispatchRequestThreadPoolNums
        topicQueueLockNum readUnCommitted putConsumeQueueDataByFileChannel enableAcceleratedRecovery
        sharedByteBufferNum spinLockCollisionRetreatOptimalDegree useABSLock maxConsumeQueueScan
        enableLogConsumeQueueRepeatedlyBuildWhenRecover serverWorkerThreads serverCallbackExecutorThreads
        serverSelectorThreads serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverSocketSndBufSize
        serverSocketRcvBufSize writeBufferHighWaterMark writeBufferLowWaterMark serverNettyWorkerGroupEnable
        serverPooledByteBufAllocatorEnable enableShutdownGracefully useEpollNativeSelector
        clientRequestThreadPoolNums defaultThreadPoolNums clientRequestThreadPoolQueueCapacity
        defaultThreadPoolQueueCapacity unRegisterBrokerQueueCapacity productEnvName clusterTest
        clientWorkerThreads clientCallbackExecutorThreads clientOnewaySemaphoreValue
        clientAsyncSemaphoreValue clientChannelMaxIdleTimeSeconds clientSocketSndBufSize
        clientSocketRcvBufSize clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout
        connectTimeoutMillis commercialBaseCount commercialSizePerMsg commercialEnable duplicationEnable
        timerGetMessageThreadNum timerPutMessageThreadNum timerEnableDisruptor timerInterceptDelayLevel
        timerWarmEnable timerEnableRetryUntilSuccess timerProgressLogIntervalMs timerStopDequeue
        diskFallRecorded maxChecksumRange realTimePersistRocksDBConfig
    """,
    "belongs to automatic failover with DLedger, or to brokers that write for others, which is not served": """
        notifyMinBrokerIdChanged totalReplicas
        syncMasterFlushOffsetWhenStartup maxSlaveResendLength
        enableRemoteEscape skipPreOnline syncBrokerMemberGroupPeriod
        enableDLegerCommitLog storePathDLedgerCommitLog
        dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId enableBatchPush replicasPerDiskPartition
        lockInStrictMode
        consumerOffsetUpdateVersionStep delayOffsetUpdateVersionStep forwardTimeout
    """,
    "is not configurable: the file is in storePathRootDir": """
        storePathEpochFile storePathBrokerIdentity
    """,
    "concerns how the official controller agrees with others; here its state is in a file or in etcd": """
        controllerType controllerThreadPoolNums controllerRequestThreadPoolQueueCapacity mappedFileSize
        electMasterMaxRetryCount isProcessReadEvent jRaftElectionTimeoutMs jRaftScanWaitTimeoutMs
        jRaftSnapshotIntervalSecs jRaftGroupId jRaftServerId jRaftInitConf jRaftControllerRPCAddr
    """,
    "concerns how the official broker stores popped messages; here nothing is merged, scanned or polled for it": """
        popPollingMapSize popPollingMapExpireTimeSeconds reviveInterval reviveMaxSlow reviveScanTime
        enableSkipLongAwaitingAck reviveAckWaitMs enablePopLog enablePopBufferMerge
        popCkStayBufferTime popCkStayBufferTimeOut popCkMaxBufferSize popCkOffsetMaxQueueSize
        enablePopBatchAck popLongPollingForceNotifyInterval enableNotifyBeforePopCalculateLag
        popConsumerFSServiceInit
        popConsumerKVServiceLog popConsumerKVServiceInit popConsumerKVServiceEnable
        popReviveMaxReturnSizePerRead popReviveConcurrency popReviveMaxAttemptTimes
        appendAckAsync appendCkAsync
        loadBalancePollNameServerInterval
    """,
    "belongs to another kind of storage, which is not served: files are those of the default store": """
        storeType readOnlyCommitLogStorePaths compactionMappedFileSize compactionCqMappedFileSize
        compactionScheduleInternal maxOffsetMapSize compactionThreadNum enableCompaction
        enableConsumeQueueExt mappedFileSizeConsumeQueueExt mapperFileSizeBatchConsumeQueue
        bitMapLengthConsumeQueueExt enableLmq enableMultiDispatch maxLmqConsumeQueueNum enableLmqStats
        timerRocksDBEnable timerRocksDBStopScan timerRocksDBPrecisionMs timerRocksDBRollMaxTps
        timerRocksDBTimeExpiredMaxTps timerRocksDBRollIntervalHours timerRocksDBRollRangeHours
        timerRecallToTimeWheelEnable timerRecallToTimelineEnable transRocksDBEnable
        transWriteOriginTransHalfEnable indexRocksDBEnable maxRocksDBIndexQueryDays
        cleanRocksDBDirtyCQIntervalMin statRocksDBCQIntervalSec memTableFlushIntervalMs enableRocksDBLog
        rocksdbCQDoubleWriteEnable combineCQLoadingCQTypes combineCQPreferCQType combineAssignOffsetCQType
        combineCQEnableCheckSelf combineCQMaxExtraSearchCommitLogFiles
        bottomMostCompressionTypeForConsumeQueueStore rocksdbCompressionType rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold enabledAppendPropCRC forceVerifyPropCRC indexFileWriteEnable
        indexFileReadEnable logicalDiskSpaceCleanForciblyThreshold enableRunningFlagsInFlush
        enableCleanExpiredOffset
    """,
    "has no effect here: the keys tls.* decide": """
        useTLS tls.config.file
    """,
    "has no effect here: Prometheus asks httpPort, and maxMetricSeries bounds the series": """
        metricsOtelCardinalityLimit metricsPromExporterPort metricsPromExporterHost
    """,
    "is not configurable yet": """
        accountStatsEnable accountStatsPrintZeroValues maxStatsIdleTimeInMinutes
        disableConsumeIfConsumerReadSlowly consumerFallbehindThreshold enableCalcFilterBitMap
        expectConsumerNumUseFilter maxErrorRateOfBloomFilter filterDataCleanTimeSpan
        realTimeNotifyConsumerChange cleanOfflineBrokerInterval transactionMetricFlushInterval
        enableDetailStat autoDeleteUnusedStats
        useStaticSubscription enableRemotingMetrics enableMessageStoreMetrics enablePopMetrics
        enableConnectionMetrics enableTransactionMetrics enableStatsMetrics enableRequestMetrics
        enableLagAndDlqMetrics estimateAccumulation coldCtrStrategyEnable usePIDColdCtrStrategy
        cgColdReadThreshold globalColdReadThreshold coldDataFlowControlEnable coldDataScanEnable
        timerColdDataCheckIntervalMs enableSingleTopicRegister enableSplitRegistration enableSplitMetadata
        splitMetadataSize splitRegistrationSize
       
        timerEnableCheckMetrics timerWheelSnapshotFlush
        timerWheelSnapshotIntervalMs timerCheckMetricsWhen
        timerSkipUnknownError
        timerMetricSmallThreshold disappearTimeAfterStart
        enableScheduleMessageStats enableScheduleAsyncDeliver
        scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    """,
}


@dataclass(frozen=True, slots=True)
class ServedValue:
    """The only value of a key that this server serves; every other one asks for ``feature``."""

    value: str
    feature: str
    remedy: str = "to run without automatic failover"


_OTHER_STORE = "a store in another format"
_DEFAULT_STORE = "to open the default store (an existing store in the other format is not read)"
REFUSED_VALUES: dict[str, ServedValue] = {
    "enableDLegerCommitLog": ServedValue(
        "false", "DLedger replication", "and let a controller choose masters (enableControllerMode=true)"
    ),
    "enableRemoteEscape": ServedValue("false", "writing to other brokers while there is no master"),
    "isInBrokerContainer": ServedValue(
        "false", "several brokers in one official container", "and run each broker as a process"
    ),
    "storeType": ServedValue("default", _OTHER_STORE, _DEFAULT_STORE),
    "timerRocksDBEnable": ServedValue("false", _OTHER_STORE, _DEFAULT_STORE),
    "transRocksDBEnable": ServedValue("false", _OTHER_STORE, _DEFAULT_STORE),
}
"""Keys of the official server with the value that is served. Texts are compared without case and surrounding blanks."""


def refusal_of(name: str, text: str) -> str | None:
    """Return why a value cannot be served and what to do; None if it can."""
    served = REFUSED_VALUES.get(name)
    if served is None or _means_same(text.strip(), served.value):
        return None
    return (
        f"{name}={text.strip()} asks for {served.feature}, which this server does not serve. "
        f"Set {name}={served.value}, in the file or with --set, {served.remedy}"
    )


def _means_same(text: str, served: str) -> bool:
    """Compare as the official server reads: an empty text leaves the default, and a switch is on only for `true`."""
    if served == "false":
        return text.lower() != "true"
    return not text or text.lower() == served.lower()


def reason_for(name: str) -> str | None:
    """Return why the official key `name` has no effect here; None for an unknown key."""
    for reason, names in REASONS.items():
        if name in names.split():
            return reason
    return None
